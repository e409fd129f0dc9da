"""Prepared records: their format, their shards, and what reads them."""

from typing import Any


def __getattr__(name: str) -> Any:
    if name == "as_tf_dataset":
        from pipelines.records.tf_data import as_tf_dataset

        return as_tf_dataset
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
