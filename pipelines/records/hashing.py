"""A hash for choices that look random and are the same on every machine."""

import hashlib


def stable_hash(text: str) -> int:
    """Returns 64 bits of the text's BLAKE2 digest; Python's own `hash` differs per process."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
