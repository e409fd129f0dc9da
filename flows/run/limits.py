"""Limits on when a sweep may begin work: a window of the day and a bound on device-hours."""

import contextlib
import dataclasses
import datetime
import math
import re
import threading
import zoneinfo
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import Field

from flows.graph.eta import TimeEstimates
from flows.graph.nodes import GraphNode, StudyGraph
from flows.steps.worker import StepOutcome
from infra.errors import ConfigError
from infra.store.manifest import Recipe
from infra.store.store import Store
from infra.time_zones import is_time_zone

_TIME = r"^(([01]\d|2[0-3]):[0-5]\d)?$"


class NodeHeldError(RuntimeError):
    """A node was not begun in this firing of a sweep, which is no failure; the message says why."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepLimits:
    """When the cells of a sweep may begin, and which ones come first.

    Attributes:
      start: time of day before which no cell begins, "HH:MM"; "" for no window.
      end: time of day after which no cell begins; cells running then are completed. If it is
        before `start`, it is a time of the next day.
      timezone: time zone of both.
      max_hours: bound on the work of one firing; 0 for no bound [device-hours].
      first: names of steps that come first, in this order and with all that they need; as
        `transfer parcel *`.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    start: Annotated[
        str,
        Field(
            description="Begin no cell before this time, HH:MM.",
            json_schema_extra={"pattern": _TIME},
        ),
    ] = ""
    end: Annotated[
        str,
        Field(
            description="Begin no cell after this time, HH:MM; running cells finish.",
            json_schema_extra={"pattern": _TIME},
        ),
    ] = ""
    timezone: Annotated[str, Field(description="Time zone of both times, e.g. Europe/Berlin.")] = (
        "UTC"
    )
    max_hours: Annotated[
        float, Field(ge=0, description="Most device-hours of one firing; 0 for no bound.")
    ] = 0.0
    first: Annotated[
        tuple[str, ...], Field(description="Steps to run first, in order, e.g. transfer parcel *.")
    ] = ()

    def __post_init__(self) -> None:
        # A window needs both ends; two equal ones could mean all day or never.
        if bool(self.start) != bool(self.end) or (self.start and self.start == self.end):
            raise ValueError(
                f"start and end (--from, --to) must be two different times of the day, or both "
                f"empty, got {self.start!r} and {self.end!r}."
            )
        for field, option in (("start", "--from"), ("end", "--to")):
            if not re.match(_TIME, getattr(self, field)):
                raise ValueError(
                    f"{field} ({option}) must be a time of the day as HH:MM, got "
                    f"{getattr(self, field)!r}."
                )
        if not is_time_zone(self.timezone):
            raise ValueError(
                f"timezone must be a time zone such as Europe/Berlin, got {self.timezone!r}."
            )

    @property
    def queues(self) -> bool:
        """Whether nodes may wait for a worker that is not free: that queue keeps no order."""
        return not (self.start or self.max_hours or self.first)

    def closes(self, now: datetime.datetime) -> datetime.datetime | None:
        """Returns the time at which the window closes; `now` outside it, None without a window."""
        if not self.start:
            return None
        local_now = now.astimezone(zoneinfo.ZoneInfo(self.timezone))
        start, end = (datetime.time.fromisoformat(text) for text in (self.start, self.end))
        time = local_now.time().replace(tzinfo=None)
        # A window with end < start spans midnight: from `start` on, or before `end`.
        #
        #   from 08:00 to 20:00         8 ████████ 20
        #   from 20:00 to 08:00    ████ 8          20 ████    after 20:00 it closes on the next day
        is_open = start <= time < end if start < end else time >= start or time < end
        if not is_open:
            return now
        day = local_now.date() + datetime.timedelta(days=int(time >= end))
        return datetime.datetime.combine(day, end, local_now.tzinfo)

    def priority(self, graph: StudyGraph) -> dict[GraphNode, int]:
        """Returns the nodes that `first` names, with all that they need: node -> its place there.

        A node that several names need has the place of the earliest.

        Raises:
          ConfigError: if one of them names no step.
        """
        for name in self.first:
            if not any(node.matches(name) for node in graph.nodes):
                raise ConfigError(
                    f"when.first must name steps of the study, got {name!r}; `--explain` lists "
                    f"them."
                )
        upstream, places = graph.upstream, dict[GraphNode, int]()
        for place, name in reversed([*enumerate(self.first)]):  # So that the earliest stays.
            places.update((node, place) for node in graph.nodes if node.matches(name))
        # Backwards, every reader is visited before the nodes that it reads: one pass is enough.
        for node in reversed(graph.nodes):
            if node in places:
                for needed in upstream[node]:
                    places[needed] = min(places.get(needed, places[node]), places[node])
        return places


ALWAYS = SweepLimits()
"""No window and no bound."""


class Admission:
    """Decides which nodes of one firing may begin, by its allowance; thread-safe.

    Args:
      limits: the firing's allowance.
      now: time at which the firing begins; None takes the current time.

    Attributes:
      expected: estimated time and cost of each step.
      holds: node that may not begin at all -> why.
    """

    def __init__(self, limits: SweepLimits = ALWAYS, now: datetime.datetime | None = None) -> None:
        self.limits, self.expected = limits, TimeEstimates()
        self.holds: Mapping[GraphNode, str] = {}
        self.closes = limits.closes(now or datetime.datetime.now(datetime.UTC))
        self.outside_window = f"outside {limits.start}-{limits.end} {limits.timezone}"
        self._seconds = 3600 * limits.max_hours or math.inf
        self._lock = threading.Lock()
        self._under_way: dict[GraphNode, float] = {}
        self._spent = 0.0

    def enter(self, node: GraphNode) -> float:
        """Lets a node begin; a node that has begun is always let in again.

        Returns:
          The time until which it may wait for a worker [seconds since the epoch].

        Raises:
          NodeHeldError: if it may not begin.
        """
        with self._lock:
            # A retry, or a second job of the node: it was let in, and its cost is counted.
            if node in self._under_way:
                return math.inf
            if node in self.holds:
                raise NodeHeldError(self.holds[node])
            now = datetime.datetime.now(datetime.UTC)
            if self.closes is not None and now >= self.closes:
                raise NodeHeldError(self.outside_window)
            # Nodes under way count by the part of their estimate that is not spent yet. The first
            # node always passes, however large: otherwise no firing could ever make it.
            cost = self._node_device_seconds(node)
            used = self._spent + sum(self._under_way.values())
            if used and used + cost >= self._seconds:
                raise NodeHeldError(
                    f"the bound of {self.limits.max_hours:g} device-hours is reached"
                )
            self._under_way[node] = cost
            return math.inf if self.closes is None else self.closes.timestamp()

    @contextlib.contextmanager
    def charge(
        self,
        node: GraphNode,
        store: Store,
        recipes: Sequence[Recipe],
        outcomes: Mapping[str, StepOutcome],
    ) -> Iterator[None]:
        """Records what a node's attempts at its steps cost while the body runs, however they end.

        Args:
          node: the node.
          store: the store, where the processes that compute record their cost.
          recipes: the steps.
          outcomes: step's name -> its outcome; the body fills it. What another run made, while
            this one waited, is that run's cost.
        """
        if math.isinf(self._seconds):  # Without a bound nobody asks, and a bucket is not, either.
            yield
            return
        earlier = {recipe.key: store.attempts_device_seconds(recipe.key) for recipe in recipes}
        try:
            yield
        finally:
            for recipe in recipes:
                outcome = outcomes.get(recipe.name)
                if outcome is None or not outcome.reused:
                    # An error of the store must not hide the one that ended the body.
                    with contextlib.suppress(OSError):
                        spent = store.attempts_device_seconds(recipe.key) - earlier[recipe.key]
                        self.spend_device_seconds(node, max(spent, 0.0))

    def spend_device_seconds(self, node: GraphNode, seconds: float) -> None:
        """Records work that a node did [device-seconds]."""
        with self._lock:
            #   estimate 10 h ─▶ 4 h of it done ─▶ ended
            #   under way  10          6            0
            #   spent       0          4            4
            self._spent += seconds
            expected = self._under_way.get(node, 0.0)
            self._under_way[node] = max(0.0, expected - seconds)

    def leave(self, node: GraphNode) -> None:
        """Notes that a node has ended: what its estimate was too high by is free again."""
        with self._lock:
            if node in self._under_way:
                self._under_way[node] = 0.0

    def _node_device_seconds(self, node: GraphNode) -> float:
        """Returns a node's estimated cost, without steps of unknown cost [device-seconds]."""
        return sum(self.expected.device_seconds(step) or 0.0 for step in node.steps)
