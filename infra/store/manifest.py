"""The manifest: everything known of one artifact, written after all of its data."""

import dataclasses
import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from infra.store.digest import canonical_json, members_sha256
from infra.store.redact import redact
from infra.typed_json import parse_typed

# A key, and what each part of it comes from:
#
#   checkpoint-3f9a2c41d07be865-9c1d44aa
#   kind       identity         code
#
#   identity   hash of kind, contents of inputs, config, seed, libraries: what is made
#   code       beginning of the code's digest: by which code. Two keys that differ only here are
#              one identity, made anew by changed code.
IDENTITY_LENGTH = 16
"""Hex digits of a step's identity in its key (64 bits)."""

CODE_LENGTH = 8
"""Hex digits of the code's digest in a key, so that other code gives the identity another key."""

KEY = re.compile(rf"[a-z]+(?:-[a-z]+)*-[0-9a-f]{{{IDENTITY_LENGTH}}}-[0-9a-f]{{0,{CODE_LENGTH}}}")
_KIND = re.compile(r"[a-z]+(?:_[a-z]+)*")
_MAX_NAME = 255
"""Longest part of a path that file systems take [bytes]."""

SHOWN = "shown"
"""Role of an input that is only looked at while a step runs; no part of the step's identity."""

LABELS = "labels"
"""Key of a manifest's environment under which the labels of its step are."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FOLDER = re.compile(r"attempts/[0-9A-Za-z-]+")


def validate_key(key: str) -> str:
    """Returns a key after a check of its form, which matters because keys become paths.

    Raises:
      ValueError: if it has another form.
    """
    if not KEY.fullmatch(key):
        raise ValueError(
            f"key must be <kind>-<{IDENTITY_LENGTH} hex digits>-<up to {CODE_LENGTH}>, got {key!r}."
        )
    return key


def kind_of_key(key: str) -> str:
    """Returns the kind of artifact that a key names."""
    return validate_key(key).rsplit("-", 2)[0].replace("-", "_")


def validate_path(name: str) -> str:
    """Returns a file's path below its folder, after a check that it is in normal form.

    Raises:
      ValueError: if it is absolute, leads out of the folder, or is spelled otherwise.
    """
    parts = name.split("/")
    try:
        is_name = "\0" not in name and all(len(part.encode()) <= _MAX_NAME for part in parts)
    except UnicodeEncodeError:  # Half of a surrogate pair.
        is_name = False
    if not is_name or not {"", ".", ".."}.isdisjoint(parts):
        raise ValueError(f"a file's name must be a plain path below its folder, got {name!r}.")
    return name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Input:
    """An artifact that a step reads: its key, and the digest of its content."""

    key: str
    content: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """A step: a function from inputs, config and seed to one artifact, and the code that runs it.

    Attributes:
      kind: kind of the artifact: "dataset", "checkpoint", "predictions", ...
      name: name for people: "transfer parcel chartqa seed=48213".
      inputs: role -> artifact read.
      config: settings; dataclasses and plain values. Where a step runs (machine, workers, paths)
        is never part of it.
      seed: seed of every random draw; None if nothing is drawn.
      libraries: name -> version of libraries that decide the artifact's bytes.
      code: digest of the code that runs. It is not part of the identity: an artifact of the same
        identity and other code is *stale*, and a person decides what happens to it.
      source: digest of the source tree that `code` is part of; "" if none is kept.
      location: folder outside the store that is read (raw data), on the machine that runs it.
      labels: facts by which people tell it from other steps; no part of the identity.
    """

    kind: str
    name: str
    inputs: Mapping[str, Input] = dataclasses.field(default_factory=dict)
    config: Any = None
    seed: int | None = None
    libraries: Mapping[str, str] = dataclasses.field(default_factory=dict)
    code: str = ""
    source: str = ""
    location: str | None = None
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _KIND.fullmatch(self.kind):
            raise ValueError(f"kind must be lower-case letters and underscores, got {self.kind!r}.")

    @functools.cached_property
    def identity(self) -> str:
        """Name of what is made: kind, and hash of inputs' contents, config, seed and libraries."""
        # Inputs count by content and not by key: an input that was made again with the same bytes,
        # by other code say, gives this step the same identity, and so a hit.
        parts = {
            "kind": self.kind,
            "inputs": {role: e.content for role, e in self.inputs.items() if role != SHOWN},
            "config": self.config,
            "seed": self.seed,
            "libraries": dict(self.libraries),
        }
        digest = members_sha256(parts)
        return f"{self.kind.replace('_', '-')}-{digest[:IDENTITY_LENGTH]}"

    @property
    def key(self) -> str:
        """Key of the artifact: its identity, and the digest of the code that makes it."""
        return f"{self.identity}{self.code_suffix}"

    @property
    def code_suffix(self) -> str:
        """End of the key, the same for all artifacts of this code."""
        return f"-{self.code[:CODE_LENGTH]}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class File:
    """One file of an artifact: its bytes' digest [hex] and size [bytes]."""

    sha256: str
    size: int

    def __post_init__(self) -> None:
        if self.size < 0 or not _SHA256.fullmatch(self.sha256):
            raise ValueError(
                f"a file must have a size and 64 hex digits, got {self.size} and "
                f"{self.sha256!r:.80}."
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """One artifact: its contents and its origin.

    Attributes:
      kind, name, key, inputs, config, seed, libraries, code, source: as in `Recipe`.
      content: digest of the artifact's content: of all its files, unless its maker states a logical
        one because the format carries clock times (Orbax does).
      folder: the attempt folder that holds the files, relative to the artifact's.
      files: relative path -> digest and size.
      counts: numbers of interest: records, rejects, steps, score.
      attempts: every attempt to make it, the last being this one.
      environment: git commit, packages, hardware, Prefect run ids; "devices", the number of devices
        that computed it, and "device_seconds", the cost of all attempts that led to it; "labels",
        those of its step.
      started: time at which this attempt began [ISO 8601, UTC].
      seconds: time it took, including the attempts that it resumed [s].
    """

    kind: str
    name: str
    key: str
    inputs: dict[str, Input]
    config: Any
    seed: int | None
    libraries: dict[str, str]
    code: str
    source: str
    content: str
    folder: str
    files: dict[str, File]
    counts: dict[str, float | int | str | bool]
    attempts: list[dict[str, str]]
    environment: dict[str, Any]
    started: str
    seconds: float

    def __post_init__(self) -> None:
        # Each of these becomes part of a path that is read, and later deleted.
        if kind_of_key(self.key) != self.kind:
            raise ValueError(f"key must begin with its kind {self.kind!r}, got {self.key!r}.")
        if not _FOLDER.fullmatch(self.folder):
            raise ValueError(f"folder must be attempts/<id>, got {self.folder!r}.")
        for name in self.files:
            validate_path(name)
        for entry in self.inputs.values():
            if validate_key(entry.key) == self.key:
                raise ValueError(f"inputs must be other artifacts, got {entry.key!r} itself.")
        if not math.isfinite(self.seconds) or self.seconds < 0:
            raise ValueError(f"seconds must be a time, got {self.seconds!r}.")

    @property
    def attempt(self) -> str:
        """Id of the attempt that made it."""
        return self.folder.removeprefix("attempts/")

    def to_json(self) -> str:
        """Returns the manifest's text, with anything that looks like a credential redacted."""
        # Redacted here and not earlier: the identity is a hash of the true config, and only what is
        # written down must not hold a credential.
        raw = json.loads(canonical_json(self))
        raw |= {part: redact(raw[part]) for part in ("config", "environment")}
        return json.dumps(raw, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Manifest":
        """Reads a manifest's text.

        Raises:
          ValueError: if it is not a manifest, or a field of it is of another type.
        """
        return parse_typed(cls, text, "the manifest")
