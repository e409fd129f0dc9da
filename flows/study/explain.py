"""Why a step would run, before anything does: re-used, stale, or new.

reused   prepare mixture/web
stale    stage1 vanilla        model.train.step._step changed since checkpoint-59ca…
follows  transfer parcel …     re-used if the steps before it come out as they were
new      intermediary parcel   intermediary.peak_lr 0.001 → 0.002
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from flows.steps.code import Tree, changes, checkout
from flows.steps.kind import Step
from flows.steps.kinds.raw_files import RAW_FILES
from flows.steps.lookup import Found, device_seconds, look_up
from flows.steps.registry import code_of, libraries_of
from flows.study.graph import Graph, Node
from flows.study.kept import KeepConfig, told_of_steps
from flows.study.load import ConfigError
from flows.study.reading import told_of_reading
from infra.store.digest import canonical_json
from infra.store.redact import redact
from infra.store.store import Artifact, Store

State = Literal["reused", "accepted", "follows", "new", "stale"]
STATES: tuple[State, ...] = ("reused", "accepted", "follows", "new", "stale")
"""A node is in the last of these states that one of its steps is in: what may cost work that was
done before is told first.
"""

_SEED = "the seed"
"""Leaf of a step's own seed; its config may have one, too."""

_COMPARED = 200
"""Artifacts of other names that a new step is compared with."""

_NAMED = 3
"""Reasons told of one step; the others are counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """One step or node before a run.

    Attributes:
      state: "reused": as it is. "accepted": made by other code, and kept on somebody's word.
        "stale": made by other code. "follows": re-used if what it reads, now stale, comes out with
        the bytes it had. "new": nothing like it is there.
      why: the reasons, for people.
      changed: functions that changed, of a stale one.
      artifact: the one there is; None where the step is new.
      seconds: of its making, times its devices; the cost of making it again [device-seconds].
      key: that the artifact of a new step will have; "" while what it reads is not there.
    """

    state: State
    why: tuple[str, ...] = ()
    changed: str = ""
    artifact: Artifact | None = None
    seconds: float = 0.0
    key: str = ""


class Explanation:
    """The verdict on every step of a graph; reads the store and starts nothing.

    Attributes:
      graph: of the study.
      steps: step -> the verdict on it.
      accepted: steps that rest on an artifact kept although its code has changed since.
    """

    def __init__(self, store: Store, graph: Graph) -> None:
        self.graph = graph
        self.steps: dict[Step, Verdict] = {}
        self._store = store
        self._owner = {step: node for node in graph.nodes for step in node.steps}
        self.accepted: set[Step] = set()
        self._let_go: list[Step] = []
        self._known: dict[str, list[_Known]] = {}
        self._changes: dict[tuple[str, str, str], list[str]] = {}
        for step in graph.steps:
            self.steps[step] = self._judge(step)
            kept = any(read in self.accepted for read in step.inputs.values())
            if kept or self.steps[step].state == "accepted":
                self.accepted.add(step)
        if self._let_go:
            self._judge_again()

    def of_node(self, node: Node) -> Verdict:
        """Returns the verdict on a node: that of its step with the most work."""
        verdicts = [self.steps[step] for step in node.steps]
        worst = max(verdicts, key=lambda v: STATES.index(v.state))  # The first: others follow.
        return Verdict(
            state=worst.state,
            why=worst.why,
            changed=worst.changed,
            artifact=verdicts[0].artifact,
        )

    def check(
        self, limit: float, rebuild: Sequence[str], held: Collection[Node] = frozenset()
    ) -> None:
        """Refuses a run that would redo much work because of changed code.

        What follows a stale step counts too: other bytes of a cheap dataset would cost the
        trainings that read it.

        Args:
          limit: most work that is done again without a word [device-hours].
          rebuild: names of steps to make again at any cost; may hold `*`.
          held: nodes that are not begun, whatever became of their code.

        Raises:
          ConfigError: naming the steps, the functions that changed, and what to do.
        """
        for pattern in rebuild:
            if not any(node.matches(pattern) for node in self.graph.nodes):
                raise ConfigError(
                    f"--rebuild must name a step of the study, got {pattern!r}; "
                    f"`--explain` lists them."
                )
        stale = [step for step in self.stale(but=rebuild) if self._owner[step] not in held]
        hours = self._at_stake(stale) / 3600
        if not stale or hours <= limit:
            return
        ran: dict[str, list[str]] = {}
        for step in stale:
            ran.setdefault(self.steps[step].changed, []).append(self._owner[step].name)
        told = "; ".join(
            f"{what} changed, which {_listed(list(dict.fromkeys(who)))} ran"
            for what, who in ran.items()
        )
        raise ConfigError(
            f"the code of {len(stale)} artifacts has changed, and making them and what follows "
            f"again takes about {hours:.2g} device-hours, above compute.rebuild_limit={limit:g}: "
            f"{told}. Make them again with --rebuild STEP (or '*'), or keep them with `parcel "
            f"accept STEP`."
        )

    def stale(self, *, but: Sequence[str] = ()) -> list[Step]:
        """Returns the stale steps, without those of nodes that a name in `but` means."""
        named = {node for node in self.graph.nodes for pattern in but if node.matches(pattern)}
        return [
            step
            for step, verdict in self.steps.items()
            if verdict.state == "stale" and self._owner[step] not in named
        ]

    def _at_stake(self, stale: Sequence[Step]) -> float:
        """Returns the cost of some stale steps, and of all that follows them [device-seconds]."""
        touched = set(stale)
        for step in self.graph.steps:  # In order: what a step reads was seen before it.
            if self.steps[step].state == "follows" and touched & set(step.inputs.values()):
                touched.add(step)
        return sum(self.steps[step].seconds for step in touched)

    def found(self) -> dict[Step, Artifact]:
        """Returns step -> its artifact, where there is one already."""
        found = {step: verdict.artifact for step, verdict in self.steps.items()}
        return {step: artifact for step, artifact in found.items() if artifact is not None}

    def lines(self, keep: KeepConfig) -> Iterator[str]:
        """Yields a line per node, a sum, and what the study will leave in the store."""
        width = max(len(node.name) for node in self.graph.nodes)
        counts = dict.fromkeys(STATES, 0)
        for node in self.graph.nodes:
            verdict = self.of_node(node)
            counts[verdict.state] += 1
            yield f"{verdict.state:<8}  {node.name:<{width}}  {'; '.join(verdict.why)}".rstrip()
        found = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        cost = self._at_stake(self.stale())
        told = f"; made again, what is stale takes about {cost:.0f} device-seconds" if cost else ""
        yield f"{len(self.graph.nodes)} steps: {found}{told}"
        yield from self.told_of_store(keep)

    def told_of_store(
        self, keep: KeepConfig, expected: Mapping[str, float] | None = None
    ) -> Iterator[str]:
        """Yields a line on the requests that reading takes, and one on the bytes that stay.

        Args:
          keep: what is kept.
          expected: name of a step -> bytes that it is expected to leave.
        """
        there = {step: verdict.artifact for step, verdict in self.steps.items()}
        yield told_of_reading(self.graph.steps, there)
        yield told_of_steps(self.graph.steps, there, keep, expected or {})

    def markdown(self) -> str:
        """Returns a table with a row per node."""
        rows = [
            f"| {verdict.state} | {node.name} | {'; '.join(verdict.why).replace('|', '/')} |"
            for node in self.graph.nodes
            for verdict in [self.of_node(node)]
        ]
        return "\n".join(["| before the run | step | because |", "|---|---|---|", *rows]) + "\n"

    def _judge(self, step: Step) -> Verdict:
        reads = {role: self.steps[read] for role, read in step.inputs.items()}
        inputs = {role: v.artifact for role, v in reads.items() if v.artifact is not None}
        if len(inputs) < len(reads):
            fresh = [s for s in step.inputs.values() if self.steps[s].artifact is None]
            told = f"{self._names(fresh)} {'are' if len(fresh) > 1 else 'is'} new"
            return Verdict(state="new", why=(*self._differences(step, {}), told))
        found = look_up(self._store, step, inputs, self.accepted)
        if found.artifact is None and (earlier := self._earlier(step)):
            why = ("files have changed, or were touched, since",)
            return Verdict(state="follows", why=why, artifact=earlier)
        if found.artifact is None:
            why = tuple(self._differences(step, inputs))
            return Verdict(state="new", why=why, key=found.recipe.key)
        if found.state == "let go":
            self._let_go.append(step)
        seconds = device_seconds(found.artifact)
        if found.state == "stale":
            changed = self._changed(found)
            why = (f"{changed} changed since {found.artifact.key}",)
            return Verdict(
                state="stale", why=why, changed=changed, artifact=found.artifact, seconds=seconds
            )
        uncertain = [s for s in step.inputs.values() if self.steps[s].state in ("follows", "stale")]
        if uncertain:
            why = (f"reads {self._names(uncertain)}",)
            return Verdict(state="follows", why=why, artifact=found.artifact, seconds=seconds)
        if found.state == "accepted":
            why = (f"{found.artifact.key} was kept",)
            return Verdict(state="accepted", why=why, artifact=found.artifact)
        return Verdict(state="reused", artifact=found.artifact)

    def _earlier(self, step: Step) -> Artifact | None:
        """Returns the newest note of the same raw files; what they hold may be as it was."""
        if step.kind != RAW_FILES.name:
            return None
        wanted = _without_state(json.loads(canonical_json(step.config)))
        found = [
            artifact
            for artifact in self._store.artifacts(step.kind)
            if artifact.manifest.name == step.name
            and _without_state(artifact.manifest.config) == wanted
        ]
        return max(found, key=lambda artifact: artifact.manifest.started, default=None)

    def _judge_again(self) -> None:
        """Judges steps whose files were let go, now that it is known who would read them."""
        wanting: dict[Step, list[str]] = {}
        for step in self.graph.steps:
            if self.steps[step].state in ("new", "stale"):
                for read in step.inputs.values():
                    wanting.setdefault(read, []).append(step.name)
        for step in self._let_go:
            if step in wanting:
                why = (f"its files were not kept, and {_listed(wanting[step])} would read them",)
                self.steps[step] = dataclasses.replace(self.steps[step], state="new", why=why)

    def _names(self, steps: Sequence[Step]) -> str:
        """Names the nodes of steps, the first few of them."""
        return _listed(list(dict.fromkeys(self._owner[step].name for step in steps)))

    def _changed(self, found: Found) -> str:
        """Names the functions that differ between the code of then and of now."""
        assert found.artifact is not None
        manifest, recipe = found.artifact.manifest, found.recipe
        if not manifest.source:
            return "its code"
        key = recipe.kind, recipe.code, manifest.code
        if key not in self._changes:
            then, now = Tree(self._store.source(manifest.source)), checkout()
            reached = code_of(recipe.kind, recipe.config, then) | code_of(
                recipe.kind, recipe.config, now
            )
            self._changes[key] = changes(then, now, reached)
        return _listed(self._changes[key]) or "its code"

    def _differences(self, step: Step, inputs: Mapping[str, Artifact]) -> list[str]:
        """Tells how a step differs from the nearest artifact there is."""
        if step.kind not in self._known:
            self._known[step.kind] = [_Known.of(a) for a in self._store.artifacts(step.kind)]
        wanted = _Known.wanted(step, inputs)
        every = self._known[step.kind]
        if not every:
            return ["the first of its kind"] if not step.inputs or inputs else []
        # Those of its name first: a large sweep has thousands of others.
        candidates = [c for c in every if c.name == step.name] or every[-_COMPARED:]
        far = [(wanted.differs_from(c), c.name != step.name) for c in candidates]
        nearest, _ = min(far, key=lambda pair: (len(pair[0]) + pair[1], pair[1]))
        if not nearest and inputs:
            return ["the artifact there was is damaged"]
        told = [_spoken(path, was, now, step) for path, was, now in nearest]
        more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
        return told[:_NAMED] + more


@dataclasses.dataclass(frozen=True)
class _Known:
    """An artifact, or a step that wants to be one, as comparable leaves: path -> value."""

    name: str
    leaves: Mapping[str, Any]

    @classmethod
    def of(cls, artifact: Artifact) -> "_Known":
        manifest = artifact.manifest
        inputs = {f"input {role}": entry.content for role, entry in manifest.inputs.items()}
        return cls(
            manifest.name,
            {**leaves(manifest.config), _SEED: manifest.seed, **manifest.libraries, **inputs},
        )

    @classmethod
    def wanted(cls, step: Step, inputs: Mapping[str, Artifact]) -> "_Known":
        config = leaves(redact(json.loads(canonical_json(step.config))))  # As manifests are.
        read = {f"input {role}": a.manifest.content for role, a in inputs.items()}
        return cls(
            step.name, {**config, _SEED: step.seed, **libraries_of(step.kind, step.config), **read}
        )

    def differs_from(self, other: "_Known") -> list[tuple[str, Any, Any]]:
        """Returns (path, its value there, the value here) of leaves that are not the same.

        Inputs do not count where none is known here.
        """
        paths = self.leaves.keys() | {p for p in other.leaves if not p.startswith("input ")}
        if any(path.startswith("input ") for path in self.leaves):
            paths |= other.leaves.keys()
        pairs = ((path, other.leaves.get(path), self.leaves.get(path)) for path in sorted(paths))
        return [(path, was, now) for path, was, now in pairs if was != now]


def _without_state(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "state"}


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Returns dotted path -> value of everything in nested dicts; lists are values."""
    if not isinstance(value, dict):
        return {path: value}
    found: dict[str, Any] = {}
    for key, inner in value.items():
        found |= leaves(inner, f"{path}.{key}" if path else str(key))
    return found


def _spoken(path: str, was: Any, now: Any, step: Step) -> str:
    """Returns a difference in the words of the study's config: `stage1.peak_lr 0.001 → 0.002`."""
    if path.startswith("input "):
        read = step.inputs.get(path.removeprefix("input "))
        if read is None:
            return f"no longer reads {path.removeprefix('input ')}"
        return f"{read.name} has other contents" if was is not None else f"reads {read.name}"
    head, _, rest = path.partition(".")
    if head in step.keys:
        path = f"{step.keys[head]}.{rest}"
    elif "" in step.keys and path != _SEED:
        path = f"{step.keys['']}.{path}"
    elif path == _SEED:
        path = "seed"
    return f"{path} {_short(was)} → {_short(now)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 40 else text[:37] + "…"
