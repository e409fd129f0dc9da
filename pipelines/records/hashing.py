"""Choices that look random and are the same on every machine."""

import hashlib


def stable_hash(text: str) -> int:
    """Returns 64 bits of a digest, the same on every machine: for choices that look random."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
