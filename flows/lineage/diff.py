"""What two cells, or artifacts, differ in: followed down to where they begin to differ.

    demo/chartqa/parcel/64                        demo-2/chartqa/parcel/64
    └── transfer parcel chartqa seed=48213            other contents
        ├── data/0  prepare chartqa/train             the same: not entered
        └── init    intermediary parcel               other contents
            └── init    stage1 vanilla                config: train.peak_lr 0.001 → 0.002

An input of other contents is entered, and so is one of the same contents that was made otherwise;
what differs in that one has no effect on what reads it, and is told last.
"""

import collections
import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from flows.lineage.named import Named
from flows.steps.code import Tree, changes
from flows.steps.kinds.files import FILES, NOTES
from flows.steps.kinds.raw_files import RAW_FILES
from flows.steps.registry import KINDS, code_of
from flows.study.explain import leaves
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store

Sort = Literal["step", "config", "seed", "data", "input", "code", "version", "hardware", "bytes"]
SORTS: tuple[Sort, ...] = get_args(Sort)

_GIVEN = (FILES.name, RAW_FILES.name)
"""Kinds of step that note files which a study is given."""

_NAMED = 2
"""Steps named in one line."""

_SHORT = 12
"""Hex digits of a digest shown to people."""

_WIDTH = 60
"""Of a value in a line [characters]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """One thing that is not the same on both sides.

    Attributes:
      sort: "step" another kind of step; "config" a value; "seed"; "data" a raw file, by its digest;
        "input" something that only one side reads; "code" functions of a module; "version" of a
        library; "hardware"; "bytes" files that differ although all of the above is the same.
      what: the config's key, the file, the module and its functions, the library, ...
      was: on the first side; None where there is nothing.
      now: on the second side; likewise.
      steps: where, by the step's name.
      patch: a unified diff of the sources, of "code".
      has_effect: whether it can have changed the contents compared.
    """

    sort: Sort
    what: str
    was: Any = None
    now: Any = None
    steps: tuple[str, ...] = ()
    patch: str = ""
    has_effect: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two sides, and all that they differ in.

    Attributes:
      names: of the sides.
      is_same: whether their contents are the same.
      differences: those that can have an effect first, by sort.
    """

    names: tuple[str, str]
    is_same: bool
    differences: tuple[Difference, ...]

    def as_json(self) -> str:
        """Returns all of it as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    def lines(self, *, patch: bool = False) -> Iterator[str]:
        """Yields it for people.

        Args:
          patch: whether to show how sources differ, line by line.
        """
        contents = "the same contents" if self.is_same else "other contents"
        yield f"{self.names[0]} → {self.names[1]}: {contents}"
        for difference in self.differences:
            more = len(difference.steps) - _NAMED
            steps = ", ".join(difference.steps[:_NAMED]) + (f" and {more} more" if more > 0 else "")
            moot = "" if difference.has_effect else "; without effect, the contents are the same"
            yield f"{difference.sort:<8}  {_told(difference)}  [{steps}{moot}]"
            if patch and difference.patch:
                yield difference.patch
        if not self.differences:
            yield "nothing differs in how they were made"


def compare(store: Store, first: Named, second: Named, other: Store | None = None) -> Comparison:
    """Compares two cells, or two artifacts.

    Two cells are compared seed by seed: those that both have, or else in their order.

    Args:
      store: where they are.
      first: one side.
      second: the other side.
      other: the store of the second side; None is the same one.
    """
    pairs = [(a.manifest, b.manifest) for a, b in _pairs(first, second)]
    return Comparison(
        names=(first.name, second.name),
        is_same=all(was.content == now.content for was, now in pairs),
        differences=_Walk(store, other or store).differences(pairs),
    )


def _pairs(first: Named, second: Named) -> list[tuple[Artifact, Artifact]]:
    if common := sorted({*first.seeds} & {*second.seeds}):
        a, b = (dict(zip(side.seeds, side.artifacts, strict=True)) for side in (first, second))
        return [(a[seed], b[seed]) for seed in common]
    return list(zip(first.artifacts, second.artifacts, strict=False))


class _Walk:
    """Goes down both histories side by side, and gathers what differs."""

    def __init__(self, store: Store, other: Store) -> None:
        self._stores = store, other
        self._found: dict[tuple[str, ...], Difference] = {}
        self._patches: dict[tuple[str, ...], list[Difference]] = {}

    def differences(self, pairs: Sequence[tuple[Manifest, Manifest]]) -> tuple[Difference, ...]:
        """Compares pairs of artifacts, and names each difference once."""
        # Pairs of other contents first: what is met by both ways has an effect.
        other = collections.deque(pair for pair in pairs if pair[0].content != pair[1].content)
        alike = collections.deque(pair for pair in pairs if pair[0].content == pair[1].content)
        entered = set[tuple[str, str]]()
        while waiting := other or alike:
            was, now = waiting.popleft()
            if (was.key, now.key) in entered:
                continue
            entered.add((was.key, now.key))
            found = [*self._own(was, now)]
            below = [*self._inputs(was, now)] if was.kind == now.kind else []
            for role, *sides in below:
                if None in sides:
                    names = [side and side.name for side in sides]
                    found.append(Difference(sort="input", what=role, was=names[0], now=names[1]))
                elif waiting is other and sides[0].content != sides[1].content:
                    other.append((sides[0], sides[1]))
                else:
                    alike.append((sides[0], sides[1]))
            if not found and not below and was.content != now.content:
                found = [*_bytes(was, now)]
            for difference in found:
                self._add(difference, _names(was, now), has_effect=waiting is other)
        return tuple(
            sorted(
                self._found.values(), key=lambda d: (not d.has_effect, SORTS.index(d.sort), d.what)
            )
        )

    def _inputs(self, was: Manifest, now: Manifest) -> Iterator[tuple[str, Any, Any]]:
        """Yields (role, manifest, manifest) of the inputs that two steps do not share."""
        for role in sorted({*was.inputs, *now.inputs}):
            entries = was.inputs.get(role), now.inputs.get(role)
            if entries[0] != entries[1]:
                first, second = (
                    entry and store.recall(entry.key).manifest
                    for store, entry in zip(self._stores, entries, strict=True)
                )
                yield role, first, second

    def _own(self, was: Manifest, now: Manifest) -> Iterator[Difference]:
        """Compares two steps, but not what they read."""
        if was.kind != now.kind:
            yield Difference(sort="step", what="kind of step", was=was.name, now=now.name)
            return
        if was.kind in _GIVEN and was.content != now.content:
            yield from _unequal("data", *map(_noted, self._stores, (was, now)))
        if was.seed != now.seed:
            yield Difference(sort="seed", what="seed", was=was.seed, now=now.seed)
        yield from _unequal("config", *map(_config, (was, now)))
        yield from _unequal("version", *map(_versions, (was, now)))
        # What only newer manifests record says nothing of the others' machines.
        hardware = [_hardware(m) for m in (was, now)]
        known = hardware[0].keys() & hardware[1].keys()
        yield from _unequal("hardware", *({k: side[k] for k in known} for side in hardware))
        if was.code != now.code:
            yield from self._code(was, now)

    def _code(self, was: Manifest, now: Manifest) -> Iterator[Difference]:
        if not (was.source and now.source and was.kind in KINDS):
            yield Difference(
                sort="code",
                what="sources were not kept",
                was=was.code[:_SHORT],
                now=now.code[:_SHORT],
            )
            return
        key = was.source, now.source, was.kind, was.code, now.code
        if key not in self._patches:
            trees = [
                Tree(store.source(m.source))
                for store, m in zip(self._stores, (was, now), strict=True)
            ]
            self._patches[key] = list(_patches(trees, was, now))
        yield from self._patches[key]

    def _add(self, difference: Difference, step: str, *, has_effect: bool) -> None:
        key = difference.sort, difference.what, repr(difference.was), repr(difference.now)
        known = self._found.get(key, dataclasses.replace(difference, has_effect=has_effect))
        steps = dict.fromkeys((*known.steps, step))
        self._found[key] = dataclasses.replace(known, steps=tuple(steps))


def _config(manifest: Manifest) -> dict[str, Any]:
    """Returns the config by key; that of given files lists them, and `_noted` does."""
    found = leaves(manifest.config)
    given = ("files", "state") if manifest.kind in _GIVEN else ()
    return {key: value for key, value in found.items() if key not in given}


def _versions(manifest: Manifest) -> dict[str, str]:
    return {**manifest.environment.get("packages", {}), **manifest.libraries}


def _hardware(manifest: Manifest) -> dict[str, Any]:
    recorded = {"devices": manifest.environment.get("devices")}
    recorded |= leaves(manifest.environment.get("hardware", {}))
    # A step that never asked JAX for its devices notes "" for the accelerator.
    return {name: value for name, value in recorded.items() if value not in (None, "")}


def _unequal(sort: Sort, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for what in sorted({*was, *now}):
        if was.get(what) != now.get(what):
            yield Difference(sort=sort, what=what, was=was.get(what), now=now.get(what))


def _bytes(was: Manifest, now: Manifest) -> Iterator[Difference]:
    """Yields the files that differ; or the contents, where these leave clock times out."""
    sides = [{name: file.sha256 for name, file in m.files.items()} for m in (was, now)]
    yield from _unequal("bytes", *sides)


def _noted(store: Store, manifest: Manifest) -> dict[str, str]:
    """Returns the digests of files that a study was given, by their path."""
    notes = Artifact(store.files, manifest).path / NOTES
    lines = (line.split("  ", 2) for line in notes.read_text(encoding="utf-8").splitlines())
    return {path: sha256 for sha256, _, path in lines}


def _patches(trees: Sequence[Tree], was: Manifest, now: Manifest) -> Iterator[Difference]:
    """Yields the modules of a step that differ between two source trees."""
    old, new = trees
    reached = [code_of(m.kind, m.config, tree) for m, tree in zip((was, now), trees, strict=True)]
    for module in sorted(reached[0] | reached[1]):
        if reached[0].get(module) == reached[1].get(module):
            continue
        texts = [
            tree.text(module).decode(errors="replace").splitlines() if module in tree else []
            for tree in trees
        ]
        names = [
            name.removeprefix(f"{module}.")
            for name in changes(old, new, [module])
            if name != module
        ]
        path = next(tree.path(module) for tree in trees if module in tree)
        yield Difference(
            sort="code",
            what=f"{module}: {', '.join(names)}" if names else module,
            patch="\n".join(
                difflib.unified_diff(*texts, fromfile=f"a/{path}", tofile=f"b/{path}", lineterm="")
            ),
        )


def _names(was: Manifest, now: Manifest) -> str:
    return was.name if was.name == now.name else f"{was.name} → {now.name}"


def _told(difference: Difference) -> str:
    was, now = (_spoken(difference.sort, value) for value in (difference.was, difference.now))
    if difference.was is None and difference.now is None:
        return difference.what
    return f"{difference.what} {was} → {now}"


def _spoken(sort: Sort, value: Any) -> str:
    if value is None:
        return "none"
    if sort in ("data", "bytes"):
        return f"sha256:{value[:_SHORT]}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
