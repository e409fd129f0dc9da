"""Digest of a tree of parameters, which depends on their content, not on where they are stored."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def flatten_params(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (path, leaf) of a nested dict, sorted by path; parts are joined by "/"."""
    for key in sorted(tree, key=str):
        path = f"{prefix}{key}"
        if isinstance(tree[key], Mapping):
            yield from flatten_params(tree[key], f"{path}/")
        else:
            yield path, tree[key]


def unflatten_params(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the nested dict of leaves that are named by their paths."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def params_digest(params: Mapping[str, Any]) -> str:
    """Returns sha256 over every parameter's name, type, shape and bytes [hex]."""
    digest = hashlib.sha256()
    for path, leaf in flatten_params(params):
        array = np.asarray(leaf)
        digest.update(f"{path} {array.dtype} {array.shape}\n".encode())
        # Views of bytes, not copies: a parameter of the published model has 2.4 GB.
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
