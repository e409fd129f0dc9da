"""Compares two cells or artifacts, and follows their histories down to where they begin to differ.

    demo/chartqa/parcel/64                        demo-2/chartqa/parcel/64
    └── transfer parcel chartqa seed=56703            other contents
        ├── data/0  prepare chartqa/train             the same: not entered
        └── init    intermediary parcel               other contents
            └── init    stage1 vanilla                config: train.peak_lr 0.001 → 0.002

An input is entered if its contents differ, or if they are the same but were made in another way.
Differences found in the second case have no effect on the steps above, and are listed last.
"""

import collections
import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from flows.lookup.config_leaves import config_leaves
from flows.lookup.target import LookupTarget
from flows.report.text_lists import abbreviate_list
from flows.steps.kinds.files import NOTES
from flows.steps.registry import KINDS, full_config, kind_of, step_code
from infra.source_code import Tree, changed_definitions
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store

Sort = Literal["step", "config", "seed", "data", "input", "code", "version", "hardware", "bytes"]
SORTS: tuple[Sort, ...] = get_args(Sort)

_MAX_NAMES = 2
"""Largest number of steps named in a line."""

_SHORT = 12
"""Number of hex digits of a digest that are shown."""

_WIDTH = 60
"""Largest length of a value in a line [characters]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineageDifference:
    """One thing that is not the same on both sides.

    Attributes:
      sort: "step" for another kind of step; "config" for a value of the config; "seed"; "data" for
        a raw file's digest; "input" for an input that only one side has; "code" for functions of a
        module; "version" for a library's version; "hardware"; "bytes" for files that differ
        although all of the above is the same.
      what: name of the config's key, the file, the module and its functions, the library, ...
      was: value on the first side; None if it has none.
      now: value on the second side; None if it has none.
      steps: names of the steps that have this difference.
      patch: unified diff of the sources, for "code".
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
class LineageComparison:
    """The differences between two sides.

    Attributes:
      names: names of the two sides.
      is_same: whether their contents are the same.
      differences: the differences, those that can have an effect first, then by sort.
    """

    names: tuple[str, str]
    is_same: bool
    differences: tuple[LineageDifference, ...]

    def as_json(self) -> str:
        """Returns the whole comparison as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    def lines(self, *, patch: bool = False) -> Iterator[str]:
        """Yields the lines that are printed.

        Args:
          patch: whether to show the unified diff of sources.
        """
        contents = "the same contents" if self.is_same else "other contents"
        yield f"{self.names[0]} → {self.names[1]}: {contents}"
        for difference in self.differences:
            steps = abbreviate_list(difference.steps, _MAX_NAMES)
            moot = "" if difference.has_effect else "; without effect, the contents are the same"
            text = _describe_lineage_difference(difference)
            yield f"{difference.sort:<8}  {text}  [{steps}{moot}]"
            if patch and difference.patch:
                yield difference.patch
        if not self.differences:
            yield "nothing differs in how they were made"


def compare_lineages(
    store: Store, first: LookupTarget, second: LookupTarget, other: Store | None = None
) -> LineageComparison:
    """Compares two cells, or two artifacts.

    Two cells are compared seed by seed, over the seeds that both have; without any, the first seed
    of one is compared with the first of the other, and so on.

    Args:
      store: the store of the first side.
      first: one side.
      second: the other side.
      other: the store of the second side; None if it is the same one.
    """
    pairs = [(a.manifest, b.manifest) for a, b in _artifact_pairs(first, second)]
    return LineageComparison(
        names=(first.name, second.name),
        is_same=all(was.content == now.content for was, now in pairs),
        differences=_HistoryWalk(store, other or store).differences(pairs),
    )


def _artifact_pairs(first: LookupTarget, second: LookupTarget) -> list[tuple[Artifact, Artifact]]:
    if common := sorted({*first.seeds} & {*second.seeds}):
        a, b = (dict(zip(side.seeds, side.artifacts, strict=True)) for side in (first, second))
        return [(a[seed], b[seed]) for seed in common]
    return list(zip(first.artifacts, second.artifacts, strict=False))


class _HistoryWalk:
    """A walk down two histories side by side that gathers their differences."""

    def __init__(self, store: Store, other: Store) -> None:
        self._stores = store, other
        self._merged: dict[tuple[str, ...], LineageDifference] = {}
        self._patches: dict[tuple[str, ...], list[LineageDifference]] = {}

    def differences(
        self, pairs: Sequence[tuple[Manifest, Manifest]]
    ) -> tuple[LineageDifference, ...]:
        """Returns each difference between pairs of artifacts once, with all steps that have it."""
        # Pairs with other contents go first: a difference found through both queues then counts as
        # having an effect.
        other_content = collections.deque(
            pair for pair in pairs if pair[0].content != pair[1].content
        )
        same_content = collections.deque(
            pair for pair in pairs if pair[0].content == pair[1].content
        )
        entered = set[tuple[str, str]]()
        while waiting := other_content or same_content:
            was, now = waiting.popleft()
            if (was.key, now.key) in entered:
                continue
            # Two paths may lead to one pair; it is compared once, by the first.
            entered.add((was.key, now.key))
            differences = [*self._step_differences(was, now)]
            # Steps of different kinds have no common roles, so there is nothing to walk into.
            below = [*self._unshared_step_inputs(was, now)] if was.kind == now.kind else []
            for role, *sides in below:
                if None in sides:
                    names = [side and side.name for side in sides]
                    differences.append(
                        LineageDifference(sort="input", what=role, was=names[0], now=names[1])
                    )
                elif waiting is other_content and sides[0].content != sides[1].content:
                    other_content.append((sides[0], sides[1]))
                else:
                    same_content.append((sides[0], sides[1]))
            # Same recipe and same inputs, yet other contents: only the bytes themselves tell more.
            if not differences and not below and was.content != now.content:
                differences = [*_file_differences(was, now)]
            for difference in differences:
                self._add_lineage_difference(
                    difference, _step_names(was, now), has_effect=waiting is other_content
                )
        return tuple(
            sorted(
                self._merged.values(), key=lambda d: (not d.has_effect, SORTS.index(d.sort), d.what)
            )
        )

    def _unshared_step_inputs(self, was: Manifest, now: Manifest) -> Iterator[tuple[str, Any, Any]]:
        """Yields (role, manifest, manifest) for inputs that two steps do not share.

        A manifest is None on a side that has no such input.
        """
        is_one_store = self._stores[0] is self._stores[1]
        for role in sorted({*was.inputs, *now.inputs}):
            entries = was.inputs.get(role), now.inputs.get(role)
            if is_one_store and entries[0] == entries[1]:
                continue
            # Another store may have an artifact of the same key, from inputs of the same contents
            # that were made in another way.
            first, second = (
                entry and store.get_cached(entry.key).manifest
                for store, entry in zip(self._stores, entries, strict=True)
            )
            if first != second:
                yield role, first, second

    def _step_differences(self, was: Manifest, now: Manifest) -> Iterator[LineageDifference]:
        """Yields the differences between two steps themselves, without their inputs."""
        if was.kind != now.kind:
            yield LineageDifference(sort="step", what="kind of step", was=was.name, now=now.name)
            return
        # Given files are compared path by path; their config would only say that some file differs.
        if kind_of(was).file_field and was.content != now.content:
            yield from _unequal_values("data", *map(_file_digests, self._stores, (was, now)))
        if was.seed != now.seed:
            yield LineageDifference(sort="seed", what="seed", was=was.seed, now=now.seed)
        yield from _unequal_values("config", *map(_config_leaves, (was, now)))
        yield from _unequal_values("version", *map(_library_versions, (was, now)))
        # Older manifests lack some fields, so only fields that both have are compared.
        hardware = [_hardware_leaves(m) for m in (was, now)]
        variables = [m.environment.get("hardware", {}).get("variables") for m in (was, now)]
        if None not in variables:  # A variable that only one side had is a difference, too.
            yield from _unequal_values("hardware", *variables)
        common_fields = hardware[0].keys() & hardware[1].keys()
        yield from _unequal_values(
            "hardware", *({k: side[k] for k in common_fields} for side in hardware)
        )
        if was.code != now.code:
            yield from self._step_code_differences(was, now)

    def _step_code_differences(self, was: Manifest, now: Manifest) -> Iterator[LineageDifference]:
        if not (was.source and now.source and was.kind in KINDS):
            yield LineageDifference(
                sort="code",
                what="sources were not kept",
                was=was.code[:_SHORT],
                now=now.code[:_SHORT],
            )
            return
        # Hundreds of steps ran the same pair of source trees; unpacking two of them takes a while.
        key = was.source, now.source, was.kind, was.code, now.code
        if key not in self._patches:
            trees = [
                Tree(store.open_source(m.source))
                for store, m in zip(self._stores, (was, now), strict=True)
            ]
            self._patches[key] = list(_code_differences(trees, was, now))
        yield from self._patches[key]

    def _add_lineage_difference(
        self, difference: LineageDifference, step: str, *, has_effect: bool
    ) -> None:
        # The same difference in forty transfers is one line that names the first two.
        key = difference.sort, difference.what, repr(difference.was), repr(difference.now)
        merged = self._merged.get(key, dataclasses.replace(difference, has_effect=has_effect))
        steps = dict.fromkeys((*merged.steps, step))
        self._merged[key] = dataclasses.replace(merged, steps=tuple(steps))


def _config_leaves(manifest: Manifest) -> dict[str, Any]:
    """Returns the config by key, without lists of given files, which `_file_digests` compares."""
    file_field = kind_of(manifest).file_field
    return {
        k: value for k, value in config_leaves(full_config(manifest)).items() if k != file_field
    }


def _library_versions(manifest: Manifest) -> dict[str, str]:
    return {**manifest.environment.get("packages", {}), **manifest.libraries}


def _hardware_leaves(manifest: Manifest) -> dict[str, Any]:
    recorded = {"devices": manifest.environment.get("devices")}
    recorded |= manifest.environment.get("hardware", {})
    # A step that never asked JAX for its devices notes "" for the accelerator.
    return {k: v for k, v in recorded.items() if k != "variables" and v not in (None, "")}


def _unequal_values(
    sort: Sort, was: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[LineageDifference]:
    for what in sorted({*was, *now}):
        if was.get(what) != now.get(what):
            yield LineageDifference(sort=sort, what=what, was=was.get(what), now=now.get(what))


def _file_differences(was: Manifest, now: Manifest) -> Iterator[LineageDifference]:
    """Yields the files whose digests differ."""
    sides = [{name: file.sha256 for name, file in m.files.items()} for m in (was, now)]
    yield from _unequal_values("bytes", *sides)


def _file_digests(store: Store, manifest: Manifest) -> dict[str, str]:
    """Returns path -> digest of the files that a study was given."""
    notes = Artifact(store.files, manifest).path / NOTES
    lines = (line.split("  ", 2) for line in notes.read_text(encoding="utf-8").splitlines())
    return {path: sha256 for sha256, _, path in lines}


def _code_differences(
    trees: Sequence[Tree], was: Manifest, now: Manifest
) -> Iterator[LineageDifference]:
    """Yields a difference for each module of a step that two source trees have differently."""
    # A module counts if either tree's step reaches it, and only if its digest differs: comments do
    # not count, since digests are of syntax trees.
    old, new = trees
    reached = [step_code(m.kind, m.config, tree) for m, tree in zip((was, now), trees, strict=True)]
    for module in sorted(reached[0] | reached[1]):
        if reached[0].get(module) == reached[1].get(module):
            continue
        texts = [
            tree.text(module).decode(errors="replace").splitlines() if module in tree else []
            for tree in trees
        ]
        # The functions that differ; a change of the module as a whole has no name of its own.
        names = [
            name.removeprefix(f"{module}.")
            for name in changed_definitions(old, new, [module])
            if name != module
        ]
        path = next(tree.path(module) for tree in trees if module in tree)
        yield LineageDifference(
            sort="code",
            what=f"{module}: {', '.join(names)}" if names else module,
            patch="\n".join(
                difflib.unified_diff(*texts, fromfile=f"a/{path}", tofile=f"b/{path}", lineterm="")
            ),
        )


def _step_names(was: Manifest, now: Manifest) -> str:
    return was.name if was.name == now.name else f"{was.name} → {now.name}"


def _describe_lineage_difference(difference: LineageDifference) -> str:
    was, now = (
        _shorten_lineage_value(difference.sort, value) for value in (difference.was, difference.now)
    )
    if difference.was is None and difference.now is None:
        return difference.what
    return f"{difference.what} {was} → {now}"


def _shorten_lineage_value(sort: Sort, value: Any) -> str:
    if value is None:
        return "none"
    if sort in ("data", "bytes"):
        return f"sha256:{value[:_SHORT]}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
