"""The manifest: everything known of one artifact, written last, beside its data."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from infra.store.digest import canonical_json, value_sha256

KEY_LENGTH = 20
"""Hex digits of a step key that name an artifact (80 bits)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """One artifact a step reads: which, and what it held."""

    key: str
    content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """A function of its inputs, config, code and seed, to one artifact.

    Attributes:
      kind: what it makes: "dataset", "checkpoint", "predictions", ...
      name: for people: "transfer parcel chartqa seed=48213".
      inputs: role -> artifact read.
      config: settings; dataclasses and plain values. Where a step runs (machine, workers, paths)
        is never part of it.
      code: digest of the code that runs.
      seed: of every random draw; None where nothing is drawn.
    """

    kind: str
    name: str
    inputs: Mapping[str, Input] = dataclasses.field(default_factory=dict)
    config: Any = None
    code: str = ""
    seed: int | None = None

    def __post_init__(self) -> None:
        if not self.kind.replace("_", "").isalpha() or self.kind != self.kind.lower():
            raise ValueError(f"kind must be lower-case letters and underscores, got {self.kind!r}.")

    @property
    def key(self) -> str:
        """Names the artifact: kind and a hash of inputs' contents, config, code and seed."""
        parts = {
            "kind": self.kind,
            "inputs": {role: entry.content for role, entry in self.inputs.items()},
            "config": self.config,
            "code": self.code,
            "seed": self.seed,
        }
        return f"{self.kind.replace('_', '-')}-{value_sha256(parts)[:KEY_LENGTH]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """One file of an artifact: its bytes' digest [hex] and size [bytes]."""

    sha256: str
    size: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What one artifact is and where it came from.

    Attributes:
      kind, name, key, inputs, config, code, seed: as in `Step`.
      content: digest of what the artifact says. Of all its files, unless its maker states a
        logical one because the format carries clock times (Orbax does).
      folder: the attempt folder that holds the files, relative to the artifact's.
      files: relative path -> digest and size.
      counts: numbers of interest: records, rejects, steps, score.
      attempts: every attempt to make it, the last being this one.
      environment: git commit, packages, hardware, Prefect run ids.
      started: when this attempt began [ISO 8601, UTC].
      seconds: how long it took.
    """

    kind: str
    name: str
    key: str
    inputs: dict[str, Input]
    config: Any
    code: str
    seed: int | None
    content: str
    folder: str
    files: dict[str, File]
    counts: dict[str, float | int | str]
    attempts: list[dict[str, str]]
    environment: dict[str, Any]
    started: str
    seconds: float

    def to_json(self) -> str:
        """Returns the manifest's text."""
        return json.dumps(json.loads(canonical_json(self)), indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads a manifest's text.

        Raises:
          ValueError: if it is not a manifest.
        """
        try:
            raw = json.loads(text)
            raw["inputs"] = {role: Input(**entry) for role, entry in raw["inputs"].items()}
            raw["files"] = {path: File(**entry) for path, entry in raw["files"].items()}
            return cls(**raw)
        except (TypeError, KeyError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"not a manifest: {error}") from error
