"""Explains before a run what would become of each step, and why.

reused   prepare mixture/web
stale    stage1 vanilla        model.train.step._step changed since checkpoint-59ca…
follows  transfer parcel …     reused if the steps before it come out as they were
new      intermediary parcel   intermediary.peak_lr 0.001 → 0.002
new      stage1 vanilla        stage1.z_loss 0.0 → 0.1: the code's value, not the config's

A step that is new only through values that code owns, defaults and recipes which nobody stated, is
remade because of an edit of the code, as a stale one is, and counts like one.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

from flows.config.keep import KeepConfig, describe_future_disk_use
from flows.config.tracker import describe_missing_trackers
from flows.graph.eta import TimeEstimates
from flows.graph.graph import Phase, graph_of
from flows.graph.inputs import check_study, read_inputs
from flows.graph.last_runs import LastRuns
from flows.graph.nearest import INPUT, SEED, Difference, NearestArtifacts
from flows.graph.nodes import GraphNode, StudyGraph
from flows.graph.reading import describe_reads
from flows.report.durations import duration_text
from flows.report.markdown import plain
from flows.report.text_lists import abbreviate_list, counted
from flows.steps.kind import Step
from flows.steps.kinds.cast import CAST
from flows.steps.kinds.predictions import PREDICTIONS
from flows.steps.registry import full_config, kind_of, libraries_of, step_code
from flows.steps.step_lookup import StepLookup, device_seconds, find_cast, look_up_step
from flows.study.processes import describe_processes, launcher_needed
from flows.study.study import StudyConfig
from infra.errors import ConfigError, did_you_mean
from infra.source_code import Tree, changed_definitions, checkout
from infra.store.backend import BUCKET_SCHEME
from infra.store.digest import canonical_json
from infra.store.store import Artifact, Store
from infra.store.variables import check_xla_flags

State = Literal["reused", "accepted", "follows", "new", "stale"]
STATES: tuple[State, ...] = ("reused", "accepted", "follows", "new", "stale")
"""Every state, the most important last: a node has the last state that one of its steps is in."""
_REUSED = ("reused", "accepted")
"""States of a step whose artifact is certain to be used."""

_DECODED_FROM_CAST = "decoded from parameters in bfloat16, since the float32 ones were pruned"

_MAX_NAMES = 3
"""Most reasons or names given in one line; the others are only counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Verdict:
    """The expected fate of one step or node in a run.

    Attributes:
      state: "reused": its artifact is used unchanged. "accepted": its artifact was made by other
        code, but kept by `parcel accept`. "stale": its artifact was made by other code. "follows":
        reused if its inputs, which are stale, come out with the same bytes again. "new": no
        artifact fits it.
      why: reasons for the state, for people.
      changed: functions whose code changed, if the state is "stale".
      artifact: the artifact in the store; None where there is none.
      seconds: cost of making the artifact again: its time, times its devices [device-seconds]. Of a
        new step, the cost of the artifact that it replaces, if nobody asked for another.
      values: the code's values that make it new although nobody asked for another.
      libraries: the versions of libraries that it differs in from the one in the study's last run.
      key: key of the artifact that a new step will make; "" where its inputs do not exist yet.
    """

    state: State
    why: tuple[str, ...] = ()
    changed: str = ""
    artifact: Artifact | None = None
    seconds: float = 0.0
    values: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    key: str = ""


class Explanation:
    """The verdict on every step of a graph; reads the store and starts nothing.

    Attributes:
      graph: the study's graph, without casts that are not there and would need a training.
      store: the store.
      view: the store as it was when the verdicts were found, from one listing.
      steps: step -> the verdict on it.
      accepted: steps that rest on an artifact kept although its code has changed since.

    Args:
      store: the store.
      graph: the study's graph.
      view: a snapshot of the store, of the same moment; None takes one.
    """

    def __init__(self, store: Store, graph: StudyGraph, view: Store | None = None) -> None:
        self.graph, self.store = graph, store
        self.steps: dict[Step, Verdict] = {}
        self.view = view or store.snapshot()
        self.accepted: set[Step] = set()
        self._pruned_steps: list[Step] = []
        self._nearest_by_kind: dict[str, NearestArtifacts] = {}
        self._last_runs = LastRuns(self.view, graph)
        self._unasked: set[Step] = set()
        self._changes: dict[tuple[str, str, str], list[str]] = {}
        # In the graph's order, so that the verdicts on a step's inputs are there before its own.
        for step in graph.steps:
            self.steps[step] = self._judge_step_reuse(step)
            rests_on_accepted = any(read in self.accepted for read in step.inputs.values())
            if rests_on_accepted or self.steps[step].state == "accepted":
                self.accepted.add(step)
        if self._pruned_steps:
            self._judge_pruned_steps()
            self._leave_out_casts()

    @property
    def study(self) -> StudyConfig:
        """The study; a graph of other steps has none."""
        assert self.graph.study is not None
        return self.graph.study

    def is_reused(self, step: Step) -> bool:
        """Returns whether the artifact that a step has is certain to be used."""
        return self.steps[step].state in _REUSED

    def is_node_reused(self, node: GraphNode) -> bool:
        """Returns whether all artifacts of a node are certain to be used."""
        return all(map(self.is_reused, node.steps))

    def of_node(self, node: GraphNode) -> Verdict:
        """Returns the verdict on a node: that of its step with the last state in `STATES`."""
        verdicts = [self.steps[step] for step in node.steps]
        # Of equal states `max` takes the first step, which caused those of later steps.
        worst = max(verdicts, key=lambda v: STATES.index(v.state))
        return Verdict(
            state=worst.state,
            why=worst.why,
            changed=worst.changed,
            artifact=verdicts[0].artifact,
        )

    def check(
        self, limit: float, rebuild: Sequence[str], holds: Collection[GraphNode] = frozenset()
    ) -> None:
        """Refuses a run that would redo much work because of changed code, or that cannot begin.

        Steps that follow a stale one count, too: if a cheap dataset comes out with other bytes,
        the trainings that read it are repeated. So do steps that are new through the code's values.

        Args:
          limit: most work that may be redone without `rebuild` [device-hours].
          rebuild: names of steps to make again at any cost; may hold `*`.
          holds: nodes that the run does not begin, so that their stale steps do not count.

        Raises:
          ConfigError: naming the steps, the functions that changed, and what to do.
        """
        self.check_rebuild(rebuild)
        check_xla_flags()
        self._check_launcher(holds)
        self._check_trackers()
        # What the user named with --rebuild, or what does not begin anyway, costs nothing here.
        redone = [
            step
            for step in (*self.stale(but=rebuild), *self._with_other_values(but=rebuild))
            if self.graph.owner[step] not in holds
        ]
        hours = sum(self._rework_costs(redone).values()) / 3600
        if not redone or hours <= limit:
            return
        stale = [step for step in redone if self.steps[step].state == "stale"]
        changes = self._describe_changes(
            stale, [step for step in redone if self.steps[step].values]
        )
        raise ConfigError(
            f"{changes[0]}, and making them and what follows again takes about {hours:.2g} "
            f"device-hours, above compute.rebuild_limit={limit:g}: {changes[1]}. Make them again "
            f"with --rebuild STEP (or '*'), or {changes[2]}."
        )

    def check_rebuild(self, rebuild: Sequence[str]) -> None:
        """Raises a `ConfigError` for the first pattern that names no step of the study."""
        for pattern in rebuild:
            if not any(node.matches(pattern) for node in self.graph.nodes):
                names = [node.name for node in self.graph.nodes]
                raise ConfigError(
                    f"--rebuild must name a step of the study, got {pattern!r}"
                    f"{did_you_mean(pattern, names) or ';'} `--explain` lists them."
                )

    def _check_launcher(self, holds: Collection[GraphNode]) -> None:
        # Without one, all processes of a training would start on the machine that runs the step.
        compute = self.graph.study and self.graph.study.compute
        if not compute or not compute.lacks_launcher:
            return
        for node in self.graph.nodes:
            is_made = node not in holds and not self.is_node_reused(node)
            if is_made and any(job.processes > 1 for job in node.jobs):
                raise ConfigError(launcher_needed(compute))

    def _check_trackers(self) -> None:
        if line := describe_missing_trackers(self.graph.study.track if self.graph.study else ()):
            raise ConfigError(line)

    def _describe_changes(self, stale: Sequence[Step], new: Sequence[Step]) -> tuple[str, str, str]:
        """Returns how many steps the code changed, what changed in it, and what would keep them."""
        # One clause per change: twenty trainings that ran one edited function are one thing to
        # decide.
        steps_by_change: dict[tuple[str, str], list[Step]] = {}
        for step in stale:
            change = f"{self.steps[step].changed} changed, which ", " ran"
            steps_by_change.setdefault(change, []).append(step)
        for step in new:
            values = abbreviate_list(self.steps[step].values, _MAX_NAMES)
            change = f"{values} by the code and not the config, which concerns ", ""
            steps_by_change.setdefault(change, []).append(step)
        changes = [
            f"{before}{self._node_names(steps)}{after}"
            for (before, after), steps in steps_by_change.items()
        ]
        counts, cures = [], []
        if stale:
            counts.append(f"the code of {counted(len(stale), 'artifact')} has changed")
            cures.append("keep them with `parcel accept STEP`")
        if new:
            noun = "step" if len(new) == 1 else "steps"
            counts.append(f"values that the code owns make {len(new)} {noun} new")
            cures.append("state the old values in the config")
        return " and ".join(counts), "; ".join(changes), ", or ".join(cures)

    def stale(self, *, but: Sequence[str] = ()) -> list[Step]:
        """Returns the stale steps, except those of nodes that a pattern in `but` matches."""
        return [step for step in self._steps_but(but) if self.steps[step].state == "stale"]

    def _with_other_values(self, *, but: Sequence[str] = ()) -> list[Step]:
        """Returns the steps that are new through the code's values, but for those of `but`."""
        return [step for step in self._steps_but(but) if self.steps[step].values]

    def rework_costs(self, *, but: Sequence[str] = ()) -> dict[Step, float]:
        """Returns the steps that changed code may have made again -> their cost [device-seconds].

        Args:
          but: names of steps that are made again at any cost; may hold `*`.
        """
        return self._rework_costs([*self.stale(but=but), *self._with_other_values(but=but)])

    def _steps_but(self, patterns: Sequence[str]) -> list[Step]:
        matching_nodes = {
            node for node in self.graph.nodes for pattern in patterns if node.matches(pattern)
        }
        return [step for step in self.steps if self.graph.owner[step] not in matching_nodes]

    def _rework_costs(self, steps: Sequence[Step]) -> dict[Step, float]:
        """Returns the costs of steps that the code changed, and of those after them.

        Args:
          steps: stale steps, and steps that are new through the code's values.

        Returns:
          Step -> the cost of making it again [device-seconds].
        """
        #   stale ─▶ follows ─▶ follows         all count: the first one's bytes decide the rest
        #   new by the code ─▶ new ─▶ new       likewise
        #   touched raw files ─▶ follows        does not: no code changed
        affected_steps = set(steps)
        for step in self.graph.steps:  # In the graph's order, inputs come before their readers.
            is_after = self.steps[step].state == "follows" or step in self._unasked
            if is_after and affected_steps & set(step.inputs.values()):
                affected_steps.add(step)
        return {step: self.steps[step].seconds for step in affected_steps}

    def artifacts(self) -> dict[Step, Artifact]:
        """Returns step -> its artifact, for steps that have one already."""
        by_step = {step: verdict.artifact for step, verdict in self.steps.items()}
        return {step: artifact for step, artifact in by_step.items() if artifact is not None}

    def estimates(self) -> TimeEstimates:
        """Returns estimates of what is missing, from the times and costs of what is there."""
        estimates = TimeEstimates()
        for step, artifact in self.artifacts().items():
            estimates.learn(artifact, step)
        return estimates

    def lines(self, keep: KeepConfig) -> Iterator[str]:
        """Yields a line per node, a sum, and lines on processes, reading, the store and cost."""
        # The lines that the head of this file shows, and a sum:
        #
        #   9 steps: 6 reused, 2 follows, 1 stale; remaking the stale steps takes about …
        width = max(len(node.name) for node in self.graph.nodes)
        counts = dict.fromkeys(STATES, 0)
        for node in self.graph.nodes:
            verdict = self.of_node(node)
            counts[verdict.state] += 1
            yield f"{verdict.state:<8}  {node.name:<{width}}  {'; '.join(verdict.why)}".rstrip()
        counts_text = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        changed = self._with_other_values()
        cost = sum(self.rework_costs().values())
        what = "what the code's values concern" if changed else "the stale steps"
        cost_text = f"; remaking {what} takes about {cost:.0f} device-seconds" if cost else ""
        yield f"{counted(len(self.graph.nodes), 'step')}: {counts_text}{cost_text}"
        if counts["follows"]:
            yield (
                "follows: it has an artifact, which is reused if the steps before it, made again, "
                "come out with the bytes they had"
            )
        if line := self.describe_remakes():
            yield line
        if self.graph.study is not None and (line := describe_processes(self.graph.study)):
            yield line
        is_bucket = self.store.uri.startswith(BUCKET_SCHEME)
        yield from self.describe_storage(keep, with_reads=is_bucket)
        yield from self._describe_cost()

    def describe_remakes(self) -> str:
        """Returns a line on steps that are made again although the config asks for none; or "".

        pillow 12.3.0 → 13.0.0: 42 of 42 steps are made again, corpus, prepare web and 40 more
        """
        reasons: dict[Step, str] = {}
        for step, verdict in self.steps.items():
            texts = verdict.libraries or verdict.values
            if verdict.state == "stale":
                texts = (f"{verdict.changed} changed",)
            if texts:
                reasons[step] = "; ".join(texts)
        if not reasons:
            return ""
        again = set(reasons)
        for step in self.graph.steps:  # In the graph's order, inputs come before their readers.
            if self.steps[step].state in ("new", "stale") and again & set(step.inputs.values()):
                again.add(step)
        nodes = [node for node in self.graph.nodes if again.intersection(node.steps)]
        why = abbreviate_list(list(dict.fromkeys(reasons.values())), _MAX_NAMES)
        names = abbreviate_list([node.name for node in nodes], _MAX_NAMES)
        are = "step is" if len(nodes) == 1 else "steps are"
        return f"{why}: {len(nodes)} of {len(self.graph.nodes)} {are} made again, {names}"

    def _describe_cost(self) -> Iterator[str]:
        """Yields a line on the time and the device-hours of what a run would make, if anything."""
        steps = [s for s, verdict in self.steps.items() if verdict.state in ("new", "stale")]
        if not steps:
            return
        nodes = {self.graph.owner[step] for step in steps}
        estimates = self._estimate_from_store({step.kind for step in steps})
        times = {step: estimates.seconds(step) for step in steps}
        if set(times.values()) == {None}:
            yield (
                f"making {counted(len(nodes), 'step')}: there is nothing like "
                f"{'it' if len(nodes) == 1 else 'them'} in the store to estimate the time from"
            )
            return
        # Between as long as its longest chain, if all that can runs at once, and one by one.
        ends: dict[Step, float] = {}
        for step in self.graph.steps:  # In the graph's order, inputs come before their readers.
            begin = max((ends[read] for read in step.inputs.values()), default=0.0)
            ends[step] = begin + (times.get(step) or 0.0)
        chain, total = max(ends.values()), sum(time or 0.0 for time in times.values())
        time_text = f"{duration_text(total)} one by one"
        if chain < total:
            time_text = f"{duration_text(chain)} if all that can runs at once, {time_text}"
        hours = sum(estimates.device_seconds(step) or 0.0 for step in steps) / 3600
        unknown = {self.graph.owner[step] for step, time in times.items() if time is None}
        unknown_text = f"; for {len(unknown)} of them there is nothing to go by" if unknown else ""
        follow = [verdict for verdict in self.steps.values() if verdict.state == "follows"]
        follow_hours = sum(verdict.seconds for verdict in follow) / 3600
        follow_text = (
            f"; those that follow took {follow_hours:.2g} device-hours" if follow_hours else ""
        )
        yield (
            f"making {counted(len(nodes), 'step')} takes about {hours:.2g} device-hours, in "
            f"{time_text}, as the like took{unknown_text}{follow_text}"
        )

    def _estimate_from_store(self, kinds: Collection[str]) -> TimeEstimates:
        """Returns estimates from all artifacts of some kinds in the store."""
        estimates = TimeEstimates()
        for kind in sorted(kinds):
            for artifact in self.view.artifacts(kind):
                estimates.learn(artifact)
        return estimates

    def describe_storage(
        self,
        keep: KeepConfig,
        expected: Mapping[str, float] | None = None,
        *,
        with_reads: bool = True,
    ) -> Iterator[str]:
        """Yields a line on the requests that trainings make, and one on the bytes that will stay.

        Args:
          keep: which files the study keeps.
          expected: name of a step -> size that its artifact is expected to have [bytes].
          with_reads: whether to yield the first line, which is of a store in a bucket.
        """
        artifacts = {step: verdict.artifact for step, verdict in self.steps.items()}
        if with_reads:
            yield describe_reads(self.graph.steps, artifacts)
        yield describe_future_disk_use(self.graph.steps, artifacts, keep, expected or {})

    def markdown(self) -> str:
        """Returns a table with a row per node."""
        rows = [
            f"| {verdict.state} | {plain(node.name)} | {plain('; '.join(verdict.why))} |"
            for node in self.graph.nodes
            for verdict in [self.of_node(node)]
        ]
        return "\n".join(["| before the run | step | because |", "|---|---|---|", *rows]) + "\n"

    def _judge_step_reuse(self, step: Step) -> Verdict:
        # The first of these that holds decides, from the inputs to the step itself:
        #
        #   an input has no artifact                        new
        #   raw files that changed, or were only touched    follows
        #   no artifact under its key                       new
        #   one made by other code                          stale
        #   an input is stale, or follows one               follows
        #   one kept by `parcel accept`                     accepted
        #   one                                             reused
        reads = {role: self.steps[read] for role, read in step.inputs.items()}
        inputs = {role: v.artifact for role, v in reads.items() if v.artifact is not None}
        # The contents of the inputs are part of the key: without them there is nothing to look up.
        if len(inputs) < len(reads):
            fresh = [s for s in step.inputs.values() if self.steps[s].artifact is None]
            reason = f"{self._node_names(fresh)} {'are' if len(fresh) > 1 else 'is'} new"
            return self._judge_new(step, {}, reason)
        lookup = look_up_step(self.view, step, inputs, self.accepted)
        # Raw files that were only touched have the old contents: what reads them may yet be reused.
        if lookup.artifact is None and (earlier := self._earlier_raw_files(step)):
            why = ("its raw files have changed, or were touched, since then",)
            return Verdict(state="follows", why=why, artifact=earlier)
        if lookup.artifact is None:
            return dataclasses.replace(self._judge_new(step, inputs), key=lookup.recipe.key)
        if lookup.is_pruned:
            self._pruned_steps.append(step)
        seconds = device_seconds(lookup.artifact)
        # Its own code changed; the names of what changed are what a person decides by.
        if lookup.state == "stale":
            changed = self._changed_functions(lookup)
            why = (f"{changed} changed since {lookup.artifact.key}",)
            return Verdict(
                state="stale", why=why, changed=changed, artifact=lookup.artifact, seconds=seconds
            )
        # Its inputs may become other artifacts, or the same bytes again: known when they are made.
        uncertain = [s for s in step.inputs.values() if self.steps[s].state in ("follows", "stale")]
        if uncertain:
            why = (f"reads {self._node_names(uncertain)}",)
            return Verdict(state="follows", why=why, artifact=lookup.artifact, seconds=seconds)
        if lookup.state == "accepted":
            why = (f"{lookup.artifact.key} was kept",)
            return Verdict(state="accepted", why=why, artifact=lookup.artifact)
        return Verdict(state="reused", artifact=lookup.artifact)

    def _judge_new(self, step: Step, inputs: Mapping[str, Artifact], *reasons: str) -> Verdict:
        """Returns the verdict on a step without an artifact: whether anybody asked for another.

        Nobody did if it differs from the artifact that the study's last run had in nothing but
        values which neither that run's config nor today's states, and in inputs of that sort.

        Args:
          step: the step.
          inputs: role -> the artifact that it would read; {} if one does not exist yet.
          reasons: further reasons for the verdict.
        """
        last = self._last_runs.artifact(step)
        values, versions = None, ()
        if last is not None:
            differences = self._nearest_artifacts(step.kind).differences_from(last, step, inputs)
            libraries = {*last.manifest.libraries, *libraries_of(step.kind, step.config)}
            values = self._values_of_code(step, differences, libraries)
            versions = tuple(
                _describe_difference(*change, step)
                for change in differences
                if change[0] in libraries
            )
        if last is None or values is None:
            why = (*self._describe_nearest_differences(step, inputs), *reasons)
            return Verdict(state="new", why=why, libraries=versions)
        self._unasked.add(step)
        shown = "; ".join(_first_texts(values))
        word = "value" if len(values) == 1 else "values"
        why = (f"{shown}: the code's {word}, not the config's",) if values else ()
        return Verdict(
            state="new", why=(*why, *reasons), values=values, seconds=device_seconds(last)
        )

    def _values_of_code(
        self, step: Step, differences: Sequence[Difference], libraries: Collection[str]
    ) -> tuple[str, ...] | None:
        """Returns the code's values that differ from an artifact's, as texts.

        They are () where only inputs are new, for such a reason; None where anything else differs.
        """
        fresh = [read for read in step.inputs.values() if self.steps[read].artifact is None]
        if not (differences or fresh) or not self._unasked.issuperset(fresh):
            return None
        others = self._last_runs.changed_leaves(step).union(libraries)
        if any(path in others or path.startswith(INPUT) for path, _, _ in differences):
            return None
        return tuple(_describe_difference(*difference, step) for difference in differences)

    def _earlier_raw_files(self, step: Step) -> Artifact | None:
        """Returns the newest artifact of the same raw files in an earlier state, if there is any.

        Their contents may be unchanged: the state changes when a file is only touched, too.
        """
        kind = kind_of(step)
        if not kind.can_be_touched:
            return None
        state = {kind.file_field: None}
        wanted_config = json.loads(canonical_json(step.config)) | state
        candidates = [
            artifact
            for artifact in self.view.artifacts(step.kind)
            if artifact.manifest.name == step.name
            and full_config(artifact.manifest) | state == wanted_config
        ]
        return max(candidates, key=lambda artifact: artifact.manifest.started, default=None)

    def _judge_pruned_steps(self) -> None:
        """Makes those steps "new" whose files were pruned, but which a step to be made would read.

        Predictions read the cast instead, where there is one, and their verdict says so. This needs
        the verdicts on all readers, which come later in the graph's order.
        """
        readers_by_step: dict[Step, list[Step]] = {}
        for step in self.graph.steps:
            if self.steps[step].state in ("new", "stale") and step.kind != CAST.name:
                for read in step.inputs.values():
                    readers_by_step.setdefault(read, []).append(step)
        for step in self._pruned_steps:
            readers, verdict = readers_by_step.get(step, []), self.steps[step]
            assert verdict.artifact is not None
            if readers and find_cast(self.view, verdict.artifact):
                for reader in (r for r in readers if r.kind == PREDICTIONS.name):
                    why = (*self.steps[reader].why, _DECODED_FROM_CAST)
                    self.steps[reader] = dataclasses.replace(self.steps[reader], why=why)
                readers = [r for r in readers if r.kind != PREDICTIONS.name]
            if readers and verdict.state != "stale":
                names = abbreviate_list([reader.name for reader in readers], _MAX_NAMES)
                why = (f"its files were not kept, and {names} would read them",)
                self.steps[step] = dataclasses.replace(verdict, state="new", why=why)

    def _leave_out_casts(self) -> None:
        """Leaves out casts of checkpoints whose files were pruned before there was a cast.

        To keep the parameters is not worth a training; where one is made anyway, they are kept.
        """
        made = ("new", "stale")
        pruned = {step for step in self._pruned_steps if self.steps[step].state not in made}
        casts = {
            step
            for step, verdict in self.steps.items()
            if step.kind == CAST.name
            and verdict.artifact is None
            and not pruned.isdisjoint(step.inputs.values())
        }
        self.graph = self.graph.without(casts)
        self.steps = {step: v for step, v in self.steps.items() if step not in casts}

    def _node_names(self, steps: Sequence[Step]) -> str:
        """Returns the names of the nodes of some steps, the first few and a count of the others."""
        return abbreviate_list(
            list(dict.fromkeys(self.graph.owner[step].name for step in steps)), _MAX_NAMES
        )

    def _changed_functions(self, lookup: StepLookup) -> str:
        """Returns the names of the functions that changed since an artifact was made."""
        assert lookup.artifact is not None
        manifest, recipe = lookup.artifact.manifest, lookup.recipe
        if not manifest.source:
            return "its code"
        # Hundreds of transfers share one change, so two trees are compared once per kind of step.
        key = recipe.kind, recipe.code, manifest.code
        if key not in self._changes:
            then, now = Tree(self.view.open_source(manifest.source)), checkout()
            # Modules that the step reached then and those it reaches now: code that a step no
            # longer calls, or only now calls, is a change as well.
            reached = step_code(recipe.kind, recipe.config, then) | step_code(
                recipe.kind, recipe.config, now
            )
            self._changes[key] = changed_definitions(then, now, reached)
        return abbreviate_list(self._changes[key], _MAX_NAMES) or "its code"

    def _nearest_artifacts(self, kind: str) -> NearestArtifacts:
        if kind not in self._nearest_by_kind:
            strangers = self._last_runs.others_keys
            self._nearest_by_kind[kind] = NearestArtifacts(
                artifact for artifact in self.view.artifacts(kind) if artifact.key not in strangers
            )
        return self._nearest_by_kind[kind]

    def _describe_nearest_differences(
        self, step: Step, inputs: Mapping[str, Artifact]
    ) -> list[str]:
        """Returns, as texts, the differences between a step and the study's most similar artifact.

        Artifacts that only runs of other studies have are no measure of it.
        """
        artifacts = self._nearest_artifacts(step.kind)
        differences = artifacts.differences(step, inputs) if artifacts else None
        if differences is None:
            is_first = not artifacts and not self._last_runs.others_keys
            what = "kind" if is_first else "name in this study"
            return [f"the first of its {what}"] if not step.inputs or inputs else []
        if not differences and inputs:
            return ["its artifact is damaged"]
        return _first_texts([_describe_difference(*difference, step) for difference in differences])


def explain_study(config: StudyConfig, store: Store, until: Phase = "report") -> Explanation:
    """Returns the verdicts on a study's steps, up to and including a phase.

    Args:
      config: the study.
      store: the store.
      until: the phase.

    Raises:
      ConfigError: if a file that the config names is missing, or a group of parameters is empty.
    """
    check_study(config)
    return Explanation(store, graph_of(config, until, read_inputs(config, store)))


def _first_texts(texts: Sequence[str]) -> list[str]:
    more = [f"and {len(texts) - _MAX_NAMES} more"] if len(texts) > _MAX_NAMES else []
    return [*texts[:_MAX_NAMES], *more]


def _describe_difference(path: str, was: Any, now: Any, step: Step) -> str:
    """Returns a difference with the study's config key: `stage1.peak_lr 0.001 → 0.002`."""
    if path.startswith(INPUT):
        read = step.inputs.get(path.removeprefix(INPUT))
        if read is None:
            return f"no longer reads {path.removeprefix(INPUT)}"
        return f"{read.name} has other contents" if was is not None else f"reads {read.name}"
    # No key of the config states a library, and that of an earlier version may be unused now.
    if path in libraries_of(step.kind, step.config, all_of_kind=True):
        return f"{path} {_shorten_setting(was)} → {_shorten_setting(now or 'unused')}"
    # The step of a transfer to ChartQA knows its recipe as `train`; the user wrote it elsewhere:
    #
    #   keys = {"train": "transfers.chartqa.train"}
    #   train.peak_lr  ─▶  transfers.chartqa.train.peak_lr 0.001 → 0.002
    head = next((head for head in step.keys if head and path.startswith(f"{head}.")), None)
    if head is not None:
        path = step.keys[head] + path.removeprefix(head)
    elif "" in step.keys and path != SEED:
        path = f"{step.keys['']}.{path}"
    elif path == SEED:
        path = "seed"
    return f"{path} {_shorten_setting(was)} → {_shorten_setting(now)}"


def _shorten_setting(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    return text if len(text) <= 40 else text[:37] + "…"
