"""A hash for choices that look random and are the same on every machine."""

import hashlib


def stable_hash(text: str) -> int:
    """Returns 64 bits of the text's BLAKE2 digest; Python's own `hash` differs per process.

    Half a surrogate pair has a hash, too: ids are hashed before it is known what they hold.
    """
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
