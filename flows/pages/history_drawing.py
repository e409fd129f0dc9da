"""The history of an artifact as a drawing, and the users of every artifact in a store."""

import collections
import dataclasses
import textwrap
import threading
from collections.abc import Iterable, Mapping, Sequence, Set

from flows.steps.labels import labels_of
from infra.store.lineage import lineage_edges
from infra.store.manifest import Manifest, kind_of_key
from infra.store.store import Artifact, Store

_MOST_BOXES = 24
"""Largest number of boxes in a drawing; above it, artifacts of one action share a box."""
_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 176, 44, 40, 12, 8
"""Size of a box, gaps between boxes, and margin around all of them [pixels]."""
_KEY_END = 9
"""Number of signs of a key by which artifacts of one name are told apart."""
_SIGNS = 25
"""Largest length of a line in a box's label, which has at most two [characters]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class HistoryBox:
    """A box of a drawing.

    Attributes:
      label: name of the step, or the action of several steps and their number.
      key: key of the artifact that it links to; "" if it stands for several.
      own: whether the page is about this artifact.
      x, y: position of its upper left corner [pixels].
    """

    label: str
    key: str
    own: bool
    x: int
    y: int
    width: int = _WIDTH
    height: int = _HEIGHT

    @property
    def lines(self) -> Sequence[tuple[int, str]]:
        """Lines of the label, cut to fit: (y of the line [pixels], its text)."""
        lines = textwrap.wrap(self.label, _SIGNS, max_lines=2, placeholder="…")
        first = self.y + (19 if len(lines) > 1 else 27)
        return [(first + 16 * i, line) for i, line in enumerate(lines)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Drawing:
    """The history of an artifact as boxes and arrows, from left to right.

    Attributes:
      boxes: the boxes and where each is drawn.
      arrows: SVG paths from input to product.
      width, height: size of the whole drawing [pixels].
    """

    boxes: Sequence[HistoryBox]
    arrows: Sequence[str]
    width: int
    height: int


def draw(store: Store, artifacts: Sequence[Artifact]) -> Drawing:
    """Returns the drawing of artifacts with everything that they were made from.

    A box's column is the length of the longest path to it. An arrow is left out if a longer path
    connects the same two boxes.

    Args:
      store: the store of the history.
      artifacts: artifacts that the page is about; at least one.
    """
    # From artifacts to boxes: many artifacts may share one. Only then arrows, columns and rows:
    #
    #   column 0       column 1            column 2
    #   ┌────────┐     ┌──────────────┐     ┌────────────────┐
    #   │ corpus │──┬─▶│ prepare coco │──┬─▶│ stage1 vanilla │    row 0
    #   └────────┘  │  ├──────────────┤  │  └────────────────┘
    #               └─▶│ prepare web  │──┘                        row 1
    #                  └──────────────┘
    found = [edge for top in artifacts for edge in lineage_edges(store, top.key)]
    manifests = {top.key: top.manifest for top in artifacts}
    manifests |= {source.key: source for source, *_ in found}
    box_of = box_labels(manifests, _MOST_BOXES)
    steps = {(box_of[source.key], box_of[product.key]) for source, _, product in found}
    arrows = _drop_redundant_arrows(
        {(source, product) for source, product in steps if source != product}
    )
    column = _box_columns(set(box_of.values()), arrows)
    members: dict[str, list[str]] = collections.defaultdict(list)
    for key, label in box_of.items():
        members[label].append(key)
    tops = {top.key for top in artifacts}
    # A column is filled from the top, by label, so the same history always looks the same.
    filled: dict[int, int] = collections.Counter()
    boxes: dict[str, HistoryBox] = {}
    for label in sorted(column, key=lambda one: (column[one], one)):
        row = filled[column[label]]
        filled[column[label]] += 1
        keys = members[label]
        boxes[label] = HistoryBox(
            label=label,
            # A box of several artifacts leads nowhere: there is no one page to open.
            key=keys[0] if len(keys) == 1 else "",
            own=not tops.isdisjoint(keys),
            x=_MARGIN + column[label] * (_WIDTH + _GAP_X),
            y=_MARGIN + row * (_HEIGHT + _GAP_Y),
        )
    return Drawing(
        boxes=tuple(boxes.values()),
        arrows=tuple(_arrow_svg_path(boxes[a], boxes[b]) for a, b in sorted(arrows)),
        width=2 * _MARGIN + (max(filled) + 1) * (_WIDTH + _GAP_X) - _GAP_X,
        height=2 * _MARGIN + max(filled.values()) * (_HEIGHT + _GAP_Y) - _GAP_Y,
    )


def box_labels(manifests: Mapping[str, Manifest], most: int, times: str = "×") -> dict[str, str]:
    """Returns key -> label of its box; steps of one action share a box if there are too many.

    Args:
      manifests: key -> manifest of each artifact of a drawing.
      most: most artifacts that have a box each.
      times: sign between an action and the number of its artifacts.
    """
    if len(manifests) <= most:
        return {key: manifest.name for key, manifest in manifests.items()}
    # "transfer m3 chartqa seed=1" and its like become one, "transfer × 24".
    actions = {key: labels_of(manifest).action for key, manifest in manifests.items()}
    sizes = collections.Counter(actions.values())
    return {
        key: f"{action} {times} {sizes[action]}" if sizes[action] > 1 else manifests[key].name
        for key, action in actions.items()
    }


def _drop_redundant_arrows(arrows: Set[tuple[str, str]]) -> Set[tuple[str, str]]:
    """Returns the arrows without those whose two boxes are also connected by a longer path."""
    after: dict[str, set[str]] = collections.defaultdict(set)
    for source, product in arrows:
        after[source].add(product)

    def reached(box: str) -> set[str]:
        found, waiting = set[str](), [*after[box]]
        while waiting:
            for product in after[waiting.pop()] - found:
                found.add(product)
                waiting.append(product)
        return found

    # An arrow a → c says nothing new where a → b → c is drawn.
    around = {box: reached(box) for box in [*after]}
    return {(source, product) for source, product in arrows if product not in around[source]}


def _box_columns(labels: Iterable[str], arrows: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Returns the length of the longest path to each box."""
    # Longest paths by relaxation. Shared boxes can form a cycle, where columns would grow for ever:
    # a path as long as the number of boxes shows one, and the loop stops.
    column = dict.fromkeys(labels, 0)
    for _ in column:
        moved = {b: column[a] + 1 for a, b in arrows if column[b] < column[a] + 1}
        if not moved or max(moved.values()) >= len(column):
            break
        column |= moved
    return column


def _arrow_svg_path(source: HistoryBox, target: HistoryBox) -> str:
    x0, y0 = source.x + source.width, source.y + source.height // 2
    x1, y1 = target.x, target.y + target.height // 2
    bend = max((x1 - x0) // 2, _GAP_X // 2)
    return f"M{x0},{y0} C{x0 + bend},{y0} {x1 - bend},{y1} {x1},{y1}"


def distinct_names(store: Store, artifacts: Mapping[str, str]) -> dict[str, str]:
    """Returns key -> name of artifacts; to a name that several have it adds when each was made.

    Args:
      store: the store of the artifacts.
      artifacts: key -> name.
    """
    counts = collections.Counter(artifacts.values())
    return {
        key: name if counts[name] == 1 else f"{name}, {_origin_text(store, key)}"
        for key, name in artifacts.items()
    }


def _origin_text(store: Store, key: str) -> str:
    """Returns when an artifact was made, to the second, with the end of its key."""
    try:
        started = store.get_cached(key).manifest.started
    except KeyError:  # gc deleted it meanwhile.
        return key
    return f"made {started[:19].replace('T', ' ')} UTC as …{key[-_KEY_END:].strip('-')}"


class UsageIndex:
    """The users of each artifact of a store; every call reads only the manifests that are new.

    Args:
      store: the store of the artifacts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[str] = set()
        self._by: dict[str, dict[str, str]] = collections.defaultdict(dict)
        self._names: dict[str, str] = {}
        self._looking = threading.Lock()

    def of(self, key: str) -> Mapping[str, str]:
        """Returns key -> name of each artifact made from this one, sorted by name."""
        return self.of_all().get(key, {})

    def namesakes(self, artifact: Artifact) -> list[str]:
        """Returns the keys of the other artifacts of a step of this name, sorted."""
        self.of_all()
        kind, name = artifact.manifest.kind, artifact.manifest.name
        names = list(self._names.items())
        found = {key for key, known in names if known == name and kind_of_key(key) == kind}
        return sorted(found - {artifact.key})

    def of_all(self) -> Mapping[str, Mapping[str, str]]:
        """Returns the users, as `of` does, of every artifact that has any."""
        with self._looking:
            # Only what changed since the last call is read. Keys are cheap to list, manifests are
            # not; and a manifest names its inputs, so every new artifact is a user of its inputs:
            #
            #   checkpoint-1 reads dataset-7   ─▶   _by[dataset-7][checkpoint-1] = "stage1 vanilla"
            there = set(self._store.keys())
            if gone := self._seen - there:
                for users in self._by.values():
                    for product in gone & users.keys():
                        del users[product]
                for product in gone:
                    self._names.pop(product, None)
            if new := there - self._seen:
                view = self._store.snapshot()
                for product in new:
                    try:
                        manifest = view.get_cached(product).manifest
                    except KeyError:
                        continue  # gc removed it since `keys`.
                    self._names[product] = manifest.name
                    for entry in manifest.inputs.values():
                        self._by[entry.key][product] = manifest.name
                # Users are sorted again only where one came.
                for source, users in self._by.items():
                    if not new.isdisjoint(users):
                        self._by[source] = dict(sorted(users.items(), key=lambda one: one[1]))
            self._seen = there
            return dict(self._by)
