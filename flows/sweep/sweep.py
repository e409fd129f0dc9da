"""Sweeps: a study widened by methods, benchmarks, budgets or seeds.

A sweep is a list of overrides of the study's config, so that `parcel sweep` and `parcel run` with
these overrides are the same run. The number of seeds so far is read from the store: a counter would
miss what other runs made and what `parcel gc` deleted.
"""

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flows.config.benchmark import trained_on
from flows.config.references import connector_reference
from flows.graph.explain import Explanation
from flows.graph.graph import graph_of
from flows.graph.inputs import check_study, read_inputs
from flows.graph.nodes import GraphNode
from flows.report.cell_text import draws_text
from flows.report.cells import CellKey, Score
from flows.report.comparable import comparable_scores
from flows.report.decision import LEAST_SEEDS, Decision, decide_pair
from flows.report.gather import read_cell
from flows.report.items_reader import ItemsReader
from flows.report.paired_scores import PairedScores
from flows.report.spread import LEVEL
from flows.report.text_lists import abbreviate_list, counted
from flows.run.retry_policy import MAX_TRIES, failures_by_node
from flows.steps.labels import labels_of
from flows.steps.registry import kind_of
from flows.study.load import apply_overrides
from flows.study.settings import MAX_PRETRAIN_SEEDS, Method, StudySettings
from flows.study.study import StudyConfig, offer_connectors
from flows.study.view import StudyView
from flows.sweep.comparisons import spend_error
from infra.errors import ConfigError, did_you_mean
from infra.store.store import Store
from pipelines.sources.registry import BENCHMARKS

MAX_SEEDS = 100
"""Most transfer seeds of a study, the same bound as in its config."""

Offered = Annotated[Method, Field(json_schema_extra=offer_connectors)]
"""Type of a method in a form, which offers the known ones."""

_OPEN = Decision(mean=0.0, low=-np.inf, high=np.inf, num_seeds=0, error=LEVEL)
"""The decision where no seed has all its scores."""

_MAX_NAMES = 4
"""Most sorts of new cells, or transfers, named in one line; the others are only counted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sweep:
    """The additions that a sweep makes to a study.

    Attributes:
      methods: methods to add to the study's.
      benchmarks: benchmarks to add to the study's.
      budgets: budgets to add to the study's.
      seeds: total number of transfer seeds per pretraining seed, where the study has fewer; 0
        leaves the study's.
      pretrain_seeds: total number of pretraining seeds, likewise.
      add_seeds: number of transfer seeds to add to those in the store, once these lack no cell.
      add_pretrain_seeds: number of pretraining seeds to add, likewise.
      max_seeds: largest total number of transfer seeds that adding may reach.
      max_pretrain_seeds: largest total number of pretraining seeds that adding may reach.
      until_decided: whether to add seeds one by one until it is settled which method is better.
      compare: methods for `until_decided`: the first is compared with each of the others; if empty,
        the study's last method with each of the others.
      least_seeds: number of transfer seeds of each pretraining below which nothing is settled.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    methods: Annotated[
        tuple[Offered, ...],
        Field(
            description="Methods to add to the study's own.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = ()
    benchmarks: Annotated[
        tuple[Annotated[str, Field(json_schema_extra={"enum": list(BENCHMARKS)})], ...],
        Field(
            description="Benchmarks to add to the study's own, with the paper's recipes.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = ()
    budgets: Annotated[
        tuple[Annotated[int, Field(ge=1, le=1024)], ...],
        Field(
            description="Budgets to add to the study's own (or its Stage 2's), in soft tokens per "
            "frame.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = ()
    seeds: Annotated[
        int,
        Field(
            ge=0, le=MAX_SEEDS, description="Total number of transfer seeds; 0: as in the study."
        ),
    ] = 0
    pretrain_seeds: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_PRETRAIN_SEEDS,
            description="Total number of pretrainings; 0: as in the study.",
        ),
    ] = 0
    add_seeds: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_SEEDS,
            description="Transfer seeds to add once the present ones have every cell.",
        ),
    ] = 0
    add_pretrain_seeds: Annotated[
        int,
        Field(
            ge=0,
            le=MAX_PRETRAIN_SEEDS,
            description="Pretrainings to add, under the same condition.",
        ),
    ] = 0
    max_seeds: Annotated[
        int, Field(ge=1, le=MAX_SEEDS, description="Largest total number of transfer seeds.")
    ] = MAX_SEEDS
    max_pretrain_seeds: Annotated[
        int, Field(ge=1, le=MAX_PRETRAIN_SEEDS, description="Largest total number of pretrainings.")
    ] = MAX_PRETRAIN_SEEDS
    until_decided: Annotated[
        bool, Field(description="Add seeds one by one until it is settled which method is better.")
    ] = False
    compare: Annotated[
        tuple[Offered, ...],
        Field(
            description="Compare the first with the others; empty: the study's last with all.",
            json_schema_extra={"uniqueItems": True},
        ),
    ] = ()
    least_seeds: Annotated[
        int, Field(ge=2, le=MAX_SEEDS, description="Seeds below which nothing is settled.")
    ] = LEAST_SEEDS

    def __post_init__(self) -> None:
        # The ranges stand at the fields, for pydantic and the form. Here is what needs a registry,
        # or two fields at once.
        for field in ("methods", "compare"):
            for i, method in enumerate(getattr(self, field)):
                if ":" not in method:  # Classes are resolved later, with the study's at hand.
                    connector_reference(f"{field}.{i}", method)
        if unknown := sorted(set(self.benchmarks) - set(BENCHMARKS)):
            raise ValueError(
                f"benchmarks must be in the registry, got {', '.join(unknown)}"
                f"{did_you_mean(unknown[0], BENCHMARKS)}; one of your own "
                f"belongs in `transfers` of the config."
            )
        if self.until_decided and (self.add_seeds or self.add_pretrain_seeds):
            raise ValueError(
                "until_decided (--until decided) must come without add_seeds and "
                "add_pretrain_seeds (--add-…): it adds seeds by itself."
            )
        stated = {"compare": self.compare, "least-seeds": self.least_seeds != LEAST_SEEDS}
        for option in (option for option, value in stated.items() if value):
            if not self.until_decided:
                raise ValueError(
                    f"{option.replace('-', '_')} (--{option}) must come with until_decided "
                    f"(--until decided)."
                )
        if self.until_decided and self.least_seeds > self.max_seeds:
            raise ValueError(
                f"max_seeds must be at least least_seeds={self.least_seeds}, below which nothing "
                f"is settled, got {self.max_seeds}; raise it (--max-seeds), or state fewer "
                f"least_seeds (--least-seeds)."
            )
        if len(self.compare) == 1:
            raise ValueError(f"compare must be two methods or more, got {self.compare[0]}.")
        for what in ("seeds", "pretrain_seeds"):
            wanted, most = getattr(self, what), getattr(self, f"max_{what}")
            if wanted > most:
                raise ValueError(f"{what} must be at most max_{what}={most}, got {wanted}.")

    def grid(self, config: StudyConfig) -> list[str]:
        """Returns the overrides that add the sweep's methods, benchmarks, budgets and seeds.

        Args:
          config: the study.
        """
        # A word replaces a list as a whole, so it repeats the study's own values:
        #
        #   methods=[vanilla, parcel, m3]   budgets=[16, 64, 144]   transfers.chartqa={}
        #
        # What the study has already is left out: a sweep that adds nothing has no words.
        words = []
        # A budget above the number of patches at the study's own resolution is for Stage 2.
        full = max(pair.model.vision.num_patches for pair in config.backbone_studies)
        larger = [b for b in self.budgets if b > full and config.stage2 is not None]
        smaller = [b for b in self.budgets if b not in larger]
        methods = {_method_name(config, "methods", method): method for method in self.methods}
        if more := [reference for name, reference in methods.items() if name not in config.methods]:
            current_references = map(config.reference_of, config.methods)
            words.append(f"methods=[{', '.join([*current_references, *more])}]")
        views = config.backbone_studies[0].resolutions
        wanted: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {
            "budgets": (config.budgets, smaller),
            **{
                f"backbones.{name}.budgets": (backbone.budgets, smaller)
                for name, backbone in config.backbones.items()
                if backbone.budgets is not None
            },
            "stage2.budgets": (views[1 if config.stage2 else 0].budgets, larger),
        }
        for field, (current_values, added) in wanted.items():
            if more := [value for value in added if value not in current_values]:
                words.append(f"{field}=[{', '.join(map(str, [*current_values, *more]))}]")
        # A benchmark that was only prepared to screen against becomes one that is transferred to.
        for name in self.benchmarks:
            if name not in config.transfers:
                words.append(f"transfers.{name}={{}}")
            elif not config.transfers[name].transfer:
                words.append(f"transfers.{name}.transfer=true")
        for field in ("seeds", "pretrain_seeds"):
            if (count := getattr(self, field)) > getattr(config, f"num_{field}"):
                words.append(f"num_{field}={count}")
        return words


NOTHING = Sweep()
"""The sweep that adds nothing, and so runs what is missing of the study itself."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepRun:
    """A sweep and the study it widens, at one moment; reads the store and starts nothing.

    Attributes:
      values: plain values of the study, not checked yet.
      source: name for their origin in errors.
      overrides: the user's overrides of the study.
      sweep: the additions.
      store: store of the study.
    """

    values: Mapping[str, Any]
    source: str
    overrides: Sequence[str]
    sweep: Sweep
    store: Store

    @functools.cached_property
    def config(self) -> StudyConfig:
        """The study with the sweep's grid.

        Raises:
          ConfigError: if the values and overrides make no valid study.
        """
        wide = [*self.overrides, *self.sweep.grid(self.study)]
        return apply_overrides(self.values, wide, source=self.source)

    @functools.cached_property
    def study(self) -> StudyConfig:
        """The study without the sweep.

        Raises:
          ConfigError: as `config`.
        """
        return apply_overrides(self.values, self.overrides, source=self.source)

    def describe_redundant_settings(self) -> Iterator[str]:
        """Yields a line for each setting that adds nothing, since the study has all of it."""
        # Each setting by itself, so that one which adds something does not hide another.
        for name in ("methods", "benchmarks", "budgets", "seeds", "pretrain_seeds"):
            value = getattr(self.sweep, name)
            if not value or Sweep(**{name: value}).grid(self.study):
                continue
            is_total = isinstance(value, int)
            setting = value if is_total else ",".join(map(str, value))
            present = f"{getattr(self.study, f'num_{name}')} already" if is_total else "all of it"
            yield (
                f"{name}={setting} adds nothing: {self.study.name} has {present}, and a sweep "
                f"only adds"
            )

    def check(self) -> None:
        """Checks the methods to compare and the seeds to add; does not read the store.

        Raises:
          ConfigError: naming what is wrong.
        """
        if self.sweep.until_decided:
            for study in self.config.backbone_studies:
                _method_pairs(study, self.sweep.compare)
        # Such scores have no transfer seed: only another pretraining gives another one.
        if self.config.zero_shot and (self.sweep.until_decided or self.sweep.add_seeds):
            field = "until_decided" if self.sweep.until_decided else "add_seeds"
            raise ConfigError(
                f"{field} must be left out where transfers.{self.config.zero_shot[0]} is "
                f"zero_shot: it adds transfer seeds; add pretrainings, add_pretrain_seeds "
                f"(--add-pretrain-seeds)."
            )

    def passes(self) -> Iterator[Explanation]:
        """Yields the verdicts on the studies to run, each drawn when those before it are done.

        Yields none where no cell is missing and no seed is to be added.
        """
        # Without `until_decided` a firing is one run at most. With it:
        #
        #   17 seeds: run, look: open ─▶ 18 seeds: run, look: open ─▶ 19 seeds: run, look: settled
        #
        # Where no cell is to be made, only the look is repeated, so a firing after a kill catches
        # up. A cell that failed too often is not to be made: it delays no later seed.
        if not self.sweep.until_decided:
            explanation, has_work, _ = self._next_study()
            if has_work:
                yield explanation
            return
        view = None
        for config in self._growing_studies():
            explanation = self.explain(config, view)
            if _has_work(explanation, failures_by_node(self.store, explanation)):
                yield explanation
                explanation = self.explain(config)  # Listed anew: scores were made since then.
            if _are_decided(self.decisions(explanation)):
                return
            view = explanation.view

    def why_nothing(self) -> str:
        """Returns the reason why there is nothing to run, in one line."""
        if self.sweep.until_decided:
            view = self.store.snapshot()
            explanation, decisions = None, dict[tuple[Method, Method], Decision]()
            for config in self._growing_studies():
                explanation = self.explain(config, view)
                decisions = self.decisions(explanation)
                if _are_decided(decisions):
                    break
            assert explanation is not None  # There is always a study of the least number of seeds.
            failed = failures_by_node(self.store, explanation)
            _, left_out = self._scores_of_table(explanation)
            verdicts = "; ".join(
                _describe_decision(pair, decision, self.sweep.least_seeds)
                for pair, decision in decisions.items()
            )
            mixed_text = f", without {counted(len(left_out), 'score')} that the table leaves out"
            return (
                f"nothing to run: {verdicts}{mixed_text * bool(left_out)}"
                f"{_but_for_abandoned(failed)}"
            )
        # Three reasons in one line: every cell is there, no seed may be added, some cells were
        # given up.
        explanation, _, failed = self._next_study()
        config = explanation.study
        bound = self.sweep.max_seeds if self.sweep.add_seeds else 0
        reached_text = (
            f", and max_seeds={bound} is reached" if 0 < bound <= config.num_seeds else ""
        )
        return (
            f"nothing to run: every cell of {_seeds_of(config)} is there{reached_text}"
            f"{_but_for_abandoned(failed)}"
        )

    def explain(self, config: StudyConfig, view: Store | None = None) -> Explanation:
        """Returns the verdicts on the steps of a study: which are there, and which are missing.

        Args:
          config: the study.
          view: as in `Explanation`.
        """
        inputs = read_inputs(config, self.store)
        return Explanation(self.store, graph_of(config, inputs=inputs), view)

    def decisions(self, explanation: Explanation) -> dict[tuple[Method, Method], Decision]:
        """Returns, for each pair of compared methods, the decision of the study's seeds.

        With several backbones there is a decision for each: of "parcel@siglip2+gemma3" and
        "m3@siglip2+gemma3". All rows, and all budgets that both methods serve, have the same
        weight. The decision is about other seeds, other items of the same kind and, with several
        pretrainings, others of these: it is made from the same scores of single items, by the same
        interval, as the comparisons of the table. A seed with a cell that failed too often, or
        whose score the table leaves out, does not count.

        Raises:
          ConfigError: if there is nothing to compare.
          ValueError: if the scores are not comparable.
        """
        config, least_seeds = explanation.study, self.sweep.least_seeds
        scores, left_out = self._scores_of_table(explanation)
        left_out |= _abandoned_cells(explanation, failures_by_node(self.store, explanation))
        compared = {}
        for study in config.backbone_studies:
            for pair in _method_pairs(study, self.sweep.compare):
                names = f"{pair[0]}{study.backbone_suffix}", f"{pair[1]}{study.backbone_suffix}"
                found = _compared_rows(study, scores.keys(), *pair, left_out=left_out)
                compared[names] = pair, *found
        # Before the first look that may settle anything, what is compared is written down.
        texts = {
            names: _comparison_text(names, rows, config.num_pretrain_seeds)
            for names, (_, _, rows) in compared.items()
        }
        errors = dict.fromkeys(texts.values(), LEVEL)
        most = max(len(seeds) for _, seeds, _ in compared.values())
        if most >= least_seeds * config.num_pretrain_seeds:
            errors = spend_error(self.store, config.name, [*errors])
        decisions = {}
        for names, (pair, seeds, rows) in compared.items():
            if not seeds:
                decisions[names] = _OPEN
                continue
            # Budgets of one benchmark are of the same trainings and pictures: first their mean.
            differences = [
                PairedScores.mean_of(
                    [
                        self._paired_scores(row, seeds, pair[0], budget, scores).minus(
                            self._paired_scores(row, seeds, pair[1], budget, scores)
                        )
                        for budget in row.budgets
                    ]
                )
                for row in rows
            ]
            numbers = {seed: number for number, seed in config.seed_pairs}
            decisions[names] = decide_pair(
                differences,
                [numbers[seed] for seed in seeds],
                error=errors[texts[names]],
                least_seeds=least_seeds,
            )
        return decisions

    def _scores_of_table(
        self, explanation: Explanation
    ) -> tuple[dict[CellKey, Score], set[CellKey]]:
        """Returns the scores that the study's table has, and the cells whose scores it leaves out.

        A cell whose score is stale has none yet: it is made again first.
        """
        recall = explanation.view.get_cached
        found: dict[CellKey, Score] = {}
        for key, step in explanation.graph.cells.items():
            artifact = explanation.steps[step].artifact
            if artifact is None or not explanation.is_reused(step):
                continue
            if artifact.key not in self._score_by_artifact:  # Each is read once, over all looks.
                self._score_by_artifact[artifact.key] = read_cell(
                    key, artifact, recall, self._shared_items_reader, accepted=False
                )
            found[key] = self._score_by_artifact[artifact.key]
        chosen, _ = comparable_scores([*found.values()])
        kept = {score.artifact for score in chosen}
        scores = {key: score for key, score in found.items() if score.artifact in kept}
        return scores, found.keys() - scores.keys()

    def _paired_scores(
        self,
        row: "_ComparedRow",
        seeds: Sequence[int],
        method: Method,
        budget: int,
        scores: Mapping[CellKey, Score],
    ) -> PairedScores:
        """Returns the scores of a method in a row at a budget, seed by seed, with their items."""
        chosen = [
            scores[CellKey(benchmark=row.name, method=method, budget=budget, seed=seed)]
            for seed in seeds
        ]
        return PairedScores.of_scores(chosen, row.training)

    @functools.cached_property
    def _score_by_artifact(self) -> dict[str, Score]:
        return {}

    @functools.cached_property
    def _shared_items_reader(self) -> ItemsReader:
        return ItemsReader()  # One for all looks: scores of the same questions share their sources.

    def _growing_studies(self) -> Iterator[StudyConfig]:
        """Yields the study with one more seed each time, from its own number up to the bound.

        Every firing starts from the first: a sweep that was killed repeats its earlier decisions.
        """
        check_study(self.config)  # Once: seeds are added, and nothing that is checked.
        # Below the least number nothing is settled, so that many are made at once. A bound below
        # the study's own number narrows nothing.
        most = max(self.sweep.max_seeds, self.config.num_seeds)
        for num_seeds in range(max(self.config.num_seeds, self.sweep.least_seeds), most + 1):
            yield dataclasses.replace(self.config, num_seeds=num_seeds)

    def _next_study(self) -> tuple[Explanation, bool, dict[GraphNode, int]]:
        """Returns the verdicts on this firing's study, whether it has work, and failures by node.

        Cells that were never tried are made before a seed is added. A failed cell is retried
        together with new seeds, at most `MAX_TRIES` times in all, so that it never blocks others.
        """
        # With `add_seeds` = 1, firing after firing:
        #
        #   begun: seeds 1, 2, one cell never tried      ─▶ that cell
        #   begun: seeds 1, 2, all made, or failed       ─▶ seed 3, and the failed ones again
        #   begun: seeds 1, 2, 3 …
        config, sweep = self.config, self.sweep
        check_study(config)  # Once: seeds are added, and nothing that is checked.
        if not (sweep.add_seeds or sweep.add_pretrain_seeds):
            explanation = self.explain(config)
            failed = failures_by_node(self.store, explanation)
            return explanation, _has_work(explanation, failed), failed
        explanation = self._explain_present_seeds()
        current_study = explanation.study
        failed = failures_by_node(self.store, explanation)
        # Finish what was begun before growing the grid; failures do not hold the growth up.
        if _nodes_without_score(explanation) - failed.keys():
            return explanation, True, failed
        wider = dataclasses.replace(
            current_study,
            num_seeds=_grow_count(current_study.num_seeds, sweep.add_seeds, sweep.max_seeds),
            num_pretrain_seeds=_grow_count(
                current_study.num_pretrain_seeds, sweep.add_pretrain_seeds, sweep.max_pretrain_seeds
            ),
        )
        if wider == current_study:
            return explanation, _has_work(explanation, failed), failed
        return self.explain(wider, explanation.view), True, failed

    def _explain_present_seeds(self) -> Explanation:
        """Returns the verdicts on the study with all seeds that have a checkpoint."""
        sweep, config = self.sweep, self.config
        widest = dataclasses.replace(
            config,
            num_seeds=1 if config.zero_shot else max(sweep.max_seeds, config.num_seeds),
            num_pretrain_seeds=max(sweep.max_pretrain_seeds, config.num_pretrain_seeds),
        )
        # First a cheap guess from labels, of transfers or of what is scored without any. It may be
        # too wide, since other studies in the store may have used the same seeds; explaining it
        # finds the checkpoints of this study.
        view = self.store.snapshot()
        kind = "predictions" if config.zero_shot else "checkpoint"
        labels = (labels_of(artifact.manifest) for artifact in view.artifacts(kind))
        likely = _with_seeds(
            config, widest, {each.seed for each in labels if each.seed is not None}
        )
        explanation = self.explain(likely, view)
        seeds = {
            key.seed
            for key, step in explanation.graph.cells.items()
            if explanation.steps[step.inputs["predictions"].inputs["checkpoint"]].artifact
        }
        present_study = _with_seeds(config, likely, seeds)
        return explanation if present_study == likely else self.explain(present_study, view)


def describe_sweep(explanation: Explanation, failed: Mapping[GraphNode, int]) -> Iterator[str]:
    """Yields lines on a sweep that is about to begin: how many cells are new, and of which sort.

    Args:
      explanation: verdicts on the study's steps.
      failed: node -> number of its failed attempts.
    """
    # The lines of a sweep that adds a seed:
    #
    #   sweep demo: 2 methods × 3 rows × 2 seeds × budgets 16, 64: 24 cells
    #   12 cells are there, 12 are new: 12 of seed 48213
    #   7 steps to make: 6 transfer, 1 results; 15 reused
    config, cells = explanation.study, explanation.graph.cells
    states = {key: explanation.steps[step].state for key, step in cells.items()}
    new = [key for key, state in states.items() if state == "new"]
    present_cells = [key for key, state in states.items() if state != "new"]
    stale = sum(state == "stale" for state in states.values())
    remade_text = f", {stale} of them remade because their code changed" if stale else ""
    grids = [
        f"{counted(len(view.rows), 'row')}{_describe_view_place(view)} × {_seeds_of(view)} × "
        f"budgets {', '.join(map(str, view.budgets))}"
        for view in config.views
    ]
    grid = " and ".join(grids)
    methods = counted(len(config.methods), "method")
    yield f"sweep {config.name}: {methods} × {grid}: {counted(len(cells), 'cell')}"
    new_text = f"{len(new)} are new{_describe_new_cells(new, present_cells)}"
    yield f"{len(present_cells)} cells are there{remade_text}, {new_text}"
    # Cells are what a person asked for, nodes what will run: one transfer makes several cells.
    nodes = [(node, explanation.of_node(node).state) for node in explanation.graph.nodes]
    to_make = Counter(node.labels.action for node, state in nodes if state in ("new", "stale"))
    # Failures are said apart: those to be tried again, and those that are no longer tried.
    if num_retried := sum(
        0 < count < MAX_TRIES and _is_scored(node) for node, count in failed.items()
    ):
        are = "is" if num_retried == 1 else "are"
        yield f"{counted(num_retried, 'transfer')} failed before and {are} tried again"
    if abandoned_text := _describe_abandoned(failed):
        yield abandoned_text
    if to_make:
        kinds_text = ", ".join(f"{count} {kind}" for kind, count in to_make.items())
        reused = len(nodes) - to_make.total()
        yield f"{counted(to_make.total(), 'step')} to make: {kinds_text}; {reused} reused"


def _describe_new_cells(new: Sequence[CellKey], present_cells: Sequence[CellKey]) -> str:
    """Returns, as text, the seeds, methods, rows and budgets that only new cells have."""
    if not new or not present_cells:
        return ""
    # A cell's sort is what no present cell has: "seed 48213", or "method m3, budget 16". A cell
    # whose every value is known was only not made yet.
    present_values = {
        field.name: {getattr(key, field.name) for key in present_cells}
        for field in dataclasses.fields(CellKey)
    }
    sorts = Counter[str]()
    for key in new:
        fresh = [
            f"{name} {getattr(key, name)}"
            for name in ("method", "benchmark", "budget", "seed")
            if getattr(key, name) not in present_values[name]
        ]
        sorts[", ".join(fresh) or "missing so far"] += 1
    lines = [f"{count} of {sort}" for sort, count in sorts.most_common(_MAX_NAMES)]
    lines = [text.replace("of missing", "missing") for text in lines]
    more = [f"and {len(sorts) - _MAX_NAMES} sorts more"] if len(sorts) > _MAX_NAMES else []
    return f": {', '.join(lines + more)}"


def _is_scored(node: GraphNode) -> bool:
    return any(kind_of(step).holds == "scores" for step in node.steps)


def _with_seeds(config: StudyConfig, wide: StudyConfig, seeds: Set[int]) -> StudyConfig:
    """Returns `config` with just enough seeds to include those of `seeds` that `wide` has.

    It never has fewer seeds than `config`.
    """
    # Pairs go pretraining by pretraining. For 2 pretrainings with 3 seeds each:
    #
    #   i                       0  1  2  3  4  5
    #   seeds that reach it     1  2  3  1  2  3
    #   pretrainings            1  1  1  2  2  2
    #
    # The largest of each row among `seeds` is the smallest grid that has them all.
    places = [
        (i % wide.num_seeds + 1, pretrain + 1)
        for i, (pretrain, seed) in enumerate(wide.seed_pairs)
        if seed in seeds
    ]
    places.append((config.num_seeds, config.num_pretrain_seeds))
    most = [max(counts) for counts in zip(*places, strict=True)]
    return dataclasses.replace(config, num_seeds=most[0], num_pretrain_seeds=most[1])


def _grow_count(count: int, more: int, most: int) -> int:
    return max(count, min(count + more, most))


def _are_decided(decisions: Mapping[tuple[Method, Method], Decision]) -> bool:
    return all(decision.decided for decision in decisions.values())


def _nodes_without_score(explanation: Explanation) -> set[GraphNode]:
    """Returns the nodes that lack a score; the results table itself does not count."""
    unscored_steps = {
        s for s in explanation.graph.cells.values() if not explanation.steps[s].artifact
    }
    return {node for node in explanation.graph.nodes if unscored_steps & {*node.steps}}


def _has_work(explanation: Explanation, failed: Mapping[GraphNode, int]) -> bool:
    """Returns whether any node is to be made that has not failed too often."""
    nodes = [node for node in explanation.graph.nodes if failed.get(node, 0) < MAX_TRIES]
    return not all(map(explanation.is_node_reused, nodes))


def _abandoned_cells(explanation: Explanation, failed: Mapping[GraphNode, int]) -> set[CellKey]:
    """Returns the cells without a score that counts whose transfers failed too often."""
    steps = {step for node, count in failed.items() if count >= MAX_TRIES for step in node.steps}
    cells = explanation.graph.cells.items()
    return {key for key, step in cells if step in steps and not explanation.is_reused(step)}


def _but_for_abandoned(failed: Mapping[GraphNode, int]) -> str:
    text = _describe_abandoned(failed)
    return f", but for {text}" if text else ""


def _describe_abandoned(failed: Mapping[GraphNode, int]) -> str:
    """Returns a line that names the transfers that failed too often; "" if there are none."""
    names = [node.name for node, count in failed.items() if count >= MAX_TRIES and _is_scored(node)]
    if not names:
        return ""
    are = "is" if len(names) == 1 else "are"
    return (
        f"{counted(len(names), 'transfer')} that failed {MAX_TRIES} times and {are} skipped until "
        f"`parcel run --failed`: {abbreviate_list(names, _MAX_NAMES)}"
    )


def _describe_view_place(view: StudyView) -> str:
    backbone = f" on {view.backbone}" if view.backbone else ""
    return backbone + (f" at {view.model.vision.image_px} px" if view.is_higher else "")


def _seeds_of(config: StudySettings) -> str:
    pretrainings = config.num_pretrain_seeds
    seeds = counted(config.num_seeds, "seed")
    return seeds + (f" of {pretrainings} pretrainings" * (pretrainings > 1))


def _method_name(config: StudySettings, field: str, method: str) -> Method:
    """Returns a method as steps name it; the study's methods are named so already."""
    return method if method in config.methods else connector_reference(field, method)


def _method_pairs(view: StudyView, compare: Sequence[Method]) -> list[tuple[Method, Method]]:
    # The first is compared with each of the others, where they serve a budget in common:
    #
    #   compare = parcel, m3, vanilla   ─▶   (parcel, m3), (parcel, vanilla)
    compare = [_method_name(view, "compare", method) for method in compare]
    if unknown := [method for method in compare if method not in view.methods]:
        raise ConfigError(
            f"compare must name methods of the sweep, {', '.join(view.methods)}, got "
            f"{', '.join(unknown)}."
        )
    # Without names: the study's last method with each of the others.
    chosen: Sequence[Method] = compare or (view.methods[-1], *view.methods[:-1])
    first, *others = chosen
    pairs: list[tuple[Method, Method]] = [
        (first, other)
        for other in others
        if set(view.budgets_of(first)) & set(view.budgets_of(other))
    ]
    if not pairs:
        raise ConfigError(
            f"until_decided must have two methods that serve a budget in common, got "
            f"{', '.join(compare or view.methods)}."
        )
    return pairs


@dataclasses.dataclass(frozen=True, kw_only=True)
class _ComparedRow:
    """A row of the results in which two methods are compared.

    Attributes:
      name: its name.
      budgets: budgets that both methods serve [tokens].
      training: name of the training whose checkpoints it is scored with.
    """

    name: str
    budgets: tuple[int, ...]
    training: str

    def cells(self, first: Method, other: Method, seed: int) -> set[CellKey]:
        """Returns the cells of both methods under a seed."""
        return {
            CellKey(benchmark=self.name, method=method, budget=budget, seed=seed)
            for method in (first, other)
            for budget in self.budgets
        }


def _compared_rows(
    base: StudyView,
    scored: Set[CellKey],
    first: Method,
    other: Method,
    *,
    left_out: Set[CellKey] = frozenset(),
) -> tuple[list[int], list[_ComparedRow]]:
    """Returns the seeds that count in the comparison of two methods, and its rows.

    Seeds count in order, up to the first that lacks a score; with several pretrainings, the first
    seed of each together, then the second of each. Those with a cell of `left_out`, whose score the
    table leaves out or whose training failed too often, are skipped. Stage 2's rows are included if
    Stage 2 has the same seeds as the study. The seeds are returned pretraining by pretraining.
    """
    rows = [
        _ComparedRow(
            name=name,
            budgets=budgets,
            training=f"{view.key_prefix}{trained_on(row.benchmark)}",
        )
        for view in base.resolutions
        if view.seeds == base.seeds
        and (budgets := tuple({*view.budgets_of(first)} & {*view.budgets_of(other)}))
        for name, row in view.rows.items()
        # As the table's comparisons over benchmarks; where there is no other row, it decides.
        if row.in_means or len(base.rows) == 1
    ]
    # [pretrainings, seeds]: a column is one seed of every pretraining.
    seeds = np.array(base.seeds).reshape(base.num_pretrain_seeds, base.num_seeds)
    # A gap ends the count: seeds after it would be chosen by which runs happened to succeed so far.
    # A seed that is left out stays out, so that skipping it chooses nothing among the others:
    #
    #   seed     1      2          3       4                 counts
    #            made   left out   made    missing so far    1, 3
    complete = []
    for number in range(base.num_seeds):
        cells = {
            key
            for row in rows
            for seed in seeds[:, number]
            for key in row.cells(first, other, int(seed))
        }
        if cells & left_out:
            continue
        if not cells <= scored:
            break
        complete.append(number)
    return [int(seed) for seed in seeds[:, complete].flatten()], rows


def _comparison_text(
    names: tuple[Method, Method], rows: Sequence[_ComparedRow], num_pretrainings: int
) -> str:
    """Returns a comparison in words that are the same whenever the same is compared."""
    scope = [f"{row.name} {', '.join(map(str, sorted(row.budgets)))}" for row in rows]
    return (
        f"{' - '.join(sorted(names))}: {'; '.join(sorted(scope))}; "
        f"{counted(num_pretrainings, 'pretraining')}"
    )


def _draws_of_decision(decision: Decision) -> str:
    """Returns what a decision was made from: "3 benchmarks, 17 seeds, 1 pretraining, 900 items"."""
    found = decision.found
    assert found is not None
    draws = draws_text(found.seeds, found.pretrainings, found.items, found.pictures)
    return f"{counted(decision.num_benchmarks, 'benchmark')}, {draws}"


def _describe_decision(pair: tuple[Method, Method], decision: Decision, least_seeds: int) -> str:
    """Returns a line on a decision: for which seeds and pictures it holds, or why it is open."""
    if decision is _OPEN:
        return f"{pair[0]} - {pair[1]}: no seed has all its scores, open"
    verdict = "open"
    if decision.decided:
        # What happens in a share q of seeds is missed by all n with the chance (1 - q)^n.
        rare = 1 - decision.error ** (1 / decision.num_seeds)
        verdict = (
            f"settled, but for what happens in fewer than {rare:.0%} of seeds, for seeds"
            f"{' and pictures' * bool(decision.unseen)} like these: "
            f"{_draws_of_decision(decision)}; wrong with a chance of at most {decision.error:.2%}"
        )
    elif decision.num_seeds < least_seeds:
        verdict = f"open below least_seeds={least_seeds}"
    elif decision.hinges_on_unseen:
        verdict = (
            f"open: losses too rare to show on these pictures could make up {decision.unseen:.2f} "
            f"({_draws_of_decision(decision)})"
        )
    return (
        f"{pair[0]} - {pair[1]}: {decision.mean:+.2f} [{decision.low:.2f}, {decision.high:.2f}] "
        f"after {decision.num_seeds} seeds, {verdict}"
    )
