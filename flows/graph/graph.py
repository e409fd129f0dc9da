"""Builds the graph of a study: all its nodes, in an order in which they can run.

Runs, sweeps, plans and `--explain` all read this one graph.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Literal

from flows.config.benchmark import (
    metric_of,
    trained_on,
    training_of,
)
from flows.config.licences import check_allowed
from flows.config.watched import watched_name
from flows.graph.datasets import datasets_of, raw_files_spec, raw_folders
from flows.graph.inputs import NO_INPUTS, StudyInputs
from flows.graph.nodes import GraphNode, StepJob, StudyGraph
from flows.graph.results_plan import results_plan
from flows.graph.specs import evaluations_of, samples_dataset, watch_of, watched_datasets
from flows.graph.user_steps import add_user_steps, cut_graph
from flows.report.cells import CHANCE, SCREENED, CellKey
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.kinds.dataset import DatasetSpec
from flows.steps.kinds.predictions import EvaluateSpec
from flows.steps.kinds.results import ResultsSpec
from flows.steps.kinds.scores import ScoreSpec
from flows.steps.kinds.start import start_spec
from flows.steps.labels import Labels
from flows.study.settings import REFERENCE, Method
from flows.study.stage_list import STUDY_START, PretrainingStage, stages_of
from flows.study.study import StudyConfig
from flows.study.view import StudyView
from infra.store.digest import value_sha256
from model.eval.metrics.registry import get_metric

Phase = Literal["prepare", "train", "transfer", "evaluate", "report"]
PHASES: tuple[Phase, ...] = ("prepare", "train", "transfer", "evaluate", "report")


def graph_of(
    config: StudyConfig, until: Phase = "report", inputs: StudyInputs = NO_INPUTS
) -> StudyGraph:
    """Returns the graph of a study, up to and including a phase.

    Args:
      config: the study.
      until: the last phase.
      inputs: what the study reads from outside the store. Without steps of the user's own nothing
        else is looked at: no file, no class.

    Raises:
      ConfigError: if a licence is not allowed, or a user's step cannot be added.
    """
    graph = _GraphBuilder(config, PHASES.index(until), inputs).graph()
    if not config.steps:
        return graph
    # A user's step may read a step of any phase, so they are added to the whole graph, which is
    # then cut. Without anything to score there is no report.
    last: Phase = "report" if config.backbone_studies[0].rows else "evaluate"
    if until == "report":
        return add_user_steps(graph, config)
    whole = _GraphBuilder(config, PHASES.index(last), inputs).graph()
    return cut_graph(add_user_steps(whole, config), graph)


class _GraphBuilder:
    """Builds a graph, phase by phase.

    Identical steps become one step, under the first one's name: a corpus of the mixture may also
    be the training split of a benchmark.
    """

    def __init__(self, config: StudyConfig, last: int, inputs: StudyInputs) -> None:
        self.config = config
        self.last = last
        self.inputs = inputs
        # Datasets that are the same for all backbones, by role: what is made of them is named after
        # none of these.
        first, *others = (self._specs_by_role(study) for study in config.backbone_studies)
        self.shared = {
            role for role, spec in first.items() if all(spec == specs[role] for specs in others)
        }
        self.nodes: list[GraphNode] = []
        self.prepared: dict[str, Step] = {}
        self._step_by_digest: dict[str, Step] = {}

    def graph(self) -> StudyGraph:
        # The graph of a study, phase by phase; `until` cuts it off below one of them:
        #
        #   prepare    corpus, or files ─▶ dataset ─▶ screened (of the mixture only)
        #   train      datasets ─▶ tokenizer, mask codec
        #              these and the mixture ─▶ stage1 ─▶ intermediary ─▶ stage2, by `stages_of`
        #   transfer   the last stage, a training split, the tokenizer ─▶ checkpoint
        #   evaluate   checkpoint (zero-shot: the last stage), evaluation split ─▶ predictions
        #              predictions, evaluation split ─▶ scores
        #              checkpoint ─▶ cast, with `keep.transfers: bfloat16`
        #   report     scores, chance, screened ─▶ results
        #
        # With several backbones, each phase but the last is done for each of them: the steps are
        # those of a study of that backbone alone, under names that end with it.
        #
        # Each phase adds its nodes after those that they read, and hands on the steps by name, so
        # the list of nodes is in an order that can run.
        datasets = self._add_dataset_steps()
        cells: dict[CellKey, Step] = {}
        results: Step | None = None
        if self.last >= PHASES.index("train"):
            studies = self.config.backbone_studies
            vocabulary = {
                s.backbone_suffix: self._add_vocabulary_steps(s, datasets) for s in studies
            }
            checkpoints: dict[tuple[str, Method, int], Step] = {}
            for study in studies:
                checkpoints |= self._add_pretraining_steps(
                    study, datasets, vocabulary[study.backbone_suffix]
                )
            if self.last >= PHASES.index("transfer"):
                for view in self.config.views:
                    used = vocabulary[view.backbone_suffix]
                    cells |= self._add_transfer_nodes(view, datasets, used, checkpoints)
                    if view.zero_shot and self.last >= PHASES.index("evaluate"):
                        cells |= self._zero_shot(view, datasets, used, checkpoints)
            if self.last >= PHASES.index("report"):
                results = self._add_results_step(datasets, cells)
        return StudyGraph(
            nodes=tuple(self.nodes),
            cells=cells,
            results=results,
            datasets=self.prepared,
            study=self.config,
        )

    def _specs_by_role(self, study: StudyView) -> dict[str, DatasetSpec]:
        return {
            study.dataset_role(name): spec
            for view in study.resolutions
            for name, spec in datasets_of(view, self.inputs.licences).items()
        }

    def _add_step_node(
        self, kind: str, labels: Labels, *, resources: Mapping[str, Any] | None = None, **more: Any
    ) -> Step:
        """Returns a step, in a new node of its own unless an identical step was added before.

        Args:
          kind: kind of the step.
          labels: labels of the step.
          resources: resources, as arguments of `StepJob`; None runs it in the study's own process.
          more: further fields of the step.
        """
        step = Step(kind=kind, labels=labels, **more)
        known_step = self._step_by_digest.setdefault(_step_digest(step), step)
        if known_step is step:
            job = StepJob(steps=(step,), **(resources or {}))
            self.nodes.append(GraphNode(labels=labels, jobs=(job,)))
        return known_step

    def _subject_of_labels(self, view: StudyView, name: str, *reads: str) -> str:
        """Returns a name without its backbone, where all backbones have the same of what it reads.

        Args:
          view: the view that the name is of.
          name: the name.
          reads: names of the datasets that it reads.
        """
        return view.dataset_role(name) if self._are_shared(view, *reads) else name

    def _are_shared(self, view: StudyView, *datasets: str) -> bool:
        return self.shared.issuperset(map(view.dataset_role, datasets))

    def _add_dataset_steps(self) -> dict[str, Step]:
        config, datasets = self.config, {}
        # Raw data are one step if they are drawn here. A user's own are noted dataset by dataset,
        # so that a changed file only touches the datasets that read it.
        corpus = None
        if config.data_root is None:
            corpus = self._add_step_node("corpus", Labels(action="corpus"), config=config.corpus)
        specs = [
            (self._subject_of_labels(view, name, name), name, spec)
            for view in config.views
            for name, spec in datasets_of(view, self.inputs.licences).items()
        ]
        trained = [(shown, spec.licence) for shown, _, spec in specs if spec.licences is not None]
        check_allowed(config.licences, [*dict(trained).items()])
        for shown, name, spec in specs:
            raw = corpus or self._add_step_node(
                "raw_files",
                Labels(action="files", subject=shown),
                config=raw_files_spec(spec, self.inputs.raw_states[raw_folders(spec)]),
                location=config.data_root,
            )
            datasets[name] = self._add_step_node(
                "dataset",
                Labels(action="prepare", subject=shown),
                config=spec,
                inputs={"raw": raw},
                location=config.data_root,
            )
        self.prepared = dict(datasets)
        # Screening reads prepared datasets of all benchmarks, so it comes after all of them.
        for view in config.views:
            datasets |= self._add_screening_steps(view, datasets)
        return datasets

    def _add_screening_steps(
        self, view: StudyView, datasets: Mapping[str, Step]
    ) -> dict[str, Step]:
        """Returns dataset -> the step that screens it, for the mixture; {} without `hygiene`."""
        if view.hygiene is None:
            return {}
        # A picture of any evaluation split counts, also of a benchmark that is not transferred to.
        rows = [f"{name}/eval" for name in view.eval_rows]
        if view.hygiene.splits == "all":
            trained = (f"{trained_on(name)}{view.view_suffix}/train" for name in view.transfers)
            rows += [name for name in dict.fromkeys(trained) if name in datasets]
        held_out = {view.dataset_role(name): datasets[name] for name in rows}
        return {
            name: self._add_step_node(
                "screened",
                Labels(action="screen", subject=self._subject_of_labels(view, name, name, *rows)),
                config=view.hygiene,
                inputs={"dataset": datasets[name], **held_out},
                # The whole config of the step is `hygiene` of the study: `--explain` says so.
                keys={"": "hygiene"},
            )
            for name in mixture_of(view)
        }

    def _add_vocabulary_steps(
        self, view: StudyView, datasets: Mapping[str, Step]
    ) -> dict[str, Step]:
        """Returns the tokenizer and the mask codec of a backbone, by role."""
        # The texts are the same at every resolution.
        texts = datasets_of(view, self.inputs.licences)
        # Neither tokenizer nor codec may learn from what a study is scored or watched on.
        held_out = {f"{name}/eval" for name in view.eval_rows}
        held_out |= {
            f"{watched_name(source)}{view.view_suffix}"
            for source in (view.watch.sources if view.watch else ())
        }
        reads = [name for name in texts if name not in held_out]
        train = {view.dataset_role(name): datasets[name] for name in reads}
        # What all backbones share is named after none of them.
        backbone = "" if self._are_shared(view, *reads) else view.backbone
        is_shared = len({study.tokenizer for study in self.config.backbone_studies}) == 1
        # A tokenizer that is given is read instead of the texts; a codec that is given is read
        # beside them.
        pieces, codec = (
            self._input_files_step(view, "tokenizer.path"),
            self._input_files_step(view, "mask_codec.path"),
        )
        steps = {
            "tokenizer": self._add_step_node(
                "tokenizer",
                Labels(action="tokenizer", backbone=backbone if is_shared else view.backbone),
                config=view.tokenizer,
                inputs=pieces or train,
                location=view.tokenizer.path,
                keys={"": view.backbone_keys.get("tokenizer", "tokenizer")},
            )
        }
        if view.mask_codec is not None:
            steps["mask_codec"] = self._add_step_node(
                "mask_codec",
                Labels(action="mask codec", backbone=backbone),
                config=view.mask_codec,
                seed=view.stage_seed("mask_codec"),
                inputs={**train, **codec},
                resources={
                    "cpus": view.compute.cpus_per_cell,
                    "gpus": view.compute.gpus_of_cell,
                },
                keys={"": "mask_codec"},
            )
        return steps

    def _input_files_step(self, view: StudyView, key: str) -> dict[str, Step]:
        """Returns the step with the digests of the files at a config key; {} if that is unset."""
        if key not in view.input_paths:
            return {}
        files = self.inputs.files[view.backbone_suffix, key]
        labels = Labels(action="files", subject=f"{key}{view.backbone_suffix}")
        return {"given": self._add_step_node("files", labels, config=files)}

    def _add_pretraining_steps(
        self,
        base: StudyView,
        datasets: Mapping[str, Step],
        vocabulary_steps: Mapping[str, Step],
    ) -> dict[tuple[str, Method, int], Step]:
        """Returns (view's suffix, method, pretraining seed) -> the last pretraining step there."""
        checkpoints: dict[tuple[str, Method, int], Step] = {}
        # The same mixture and vocabulary for all stages at a resolution; `init` is what differs.
        inputs = {
            view.view_suffix: {
                **{f"data/{i}": datasets[name] for i, name in enumerate(mixture_of(view))},
                **vocabulary_steps,
            }
            for view in base.resolutions
        }

        def fit(
            stage: PretrainingStage, method: Method, number: int, init: Mapping[str, Step]
        ) -> Step:
            """Adds one stage, with the resources of Stage 1 or of a cell."""
            view, compute = stage.view, base.compute
            train = stage.train_config_of(method)
            return self._add_step_node(
                "checkpoint",
                Labels(
                    action=stage.name,
                    method=method,
                    backbone=base.backbone,
                    pretraining=number if base.num_pretrain_seeds > 1 else None,
                ),
                config=FitSpec(
                    model=view.model_of(method),
                    train=train,
                    watch=watch_of(view, method),
                    profile=compute.profiled,
                    deterministic=compute.deterministic,
                ),
                seed=base.stage_seed(stage.name, number),
                inputs={
                    **inputs[view.view_suffix],
                    **init,
                    **watched_datasets(view, datasets),
                    **samples_dataset(view, datasets, train),
                },
                resources=compute.of_stage if stage.is_shared else compute.of_cell,
                keys={
                    "train": base.backbone_keys.get(stage.key, stage.key),
                    **base.backbone_keys,
                },
            )

        starts = {m: self._add_start_step(base, base.connector_of(m)) for m in base.methods}
        # Method by method, from one stage to the next:
        #
        #   stage1 vanilla ─▶ intermediary parcel ─▶ stage2 parcel (448 px)
        #                 └─▶ intermediary m3     ─▶ …
        #
        # A stage that the config leaves out, or that a method is not trained in, passes on what it
        # would have started from. Stage 1 is added for each method, and is one step, as identical
        # steps are.
        stages = stages_of(base)
        for number in range(base.num_pretrain_seeds):
            for method in base.methods:
                last = starts[method]
                ends = {STUDY_START: last}
                if "init" in last:  # For transfers in a study that trains no stage.
                    checkpoints[base.view_suffix, method, number] = last["init"]
                for stage in stages:
                    init = last if stage.after is None else ends[stage.after]
                    if stage.is_shared or method in stage.methods:
                        if stage.is_shared:
                            step = fit(
                                stage, REFERENCE, number, self._add_start_step(base, REFERENCE)
                            )
                        else:
                            step = fit(stage, method, number, init)
                        init = last = {"init": step}
                        # Transfers at its resolution start from the last stage there.
                        checkpoints[stage.view.view_suffix, method, number] = step
                    ends[stage.name] = init
        return checkpoints

    def _add_start_step(self, view: StudyView, method: Method) -> dict[str, Step]:
        """Returns the checkpoint that a method's first stage starts from; {} without `start`."""
        start = view.start
        if start is None:
            return {}
        # One folder for all methods becomes one step, since `_add_step_node` returns an equal one
        # that is there; a folder per method becomes a step for each.
        is_by_method = isinstance(start, dict)
        key = f"start.{method}" if is_by_method else "start"
        location = start[method] if isinstance(start, dict) else start
        step = self._add_step_node(
            "start",
            Labels(action="start", method=method if is_by_method else "", backbone=view.backbone),
            config=start_spec(view.model),
            inputs=self._input_files_step(view, key),
            location=location,
        )
        return {"init": step}

    def _add_transfer_nodes(
        self,
        view: StudyView,
        datasets: Mapping[str, Step],
        vocabulary_steps: Mapping[str, Step],
        checkpoints: Mapping[tuple[str, Method, int], Step],
    ) -> dict[CellKey, Step]:
        """Adds a node per transfer at a resolution, and returns the steps that score its cells."""
        cells: dict[CellKey, Step] = {}
        models = {method: view.model_of(method, transfer=True) for method in view.methods}
        # A checkpoint per benchmark, method and seed is scored on the rows of that benchmark, and
        # on those of zero-shot benchmarks that are scored with its training.
        for benchmark in view.fine_tunings:
            for method in view.methods:
                # One object for all seeds: `settings_json` caches its text by the object's id.
                fit_spec = FitSpec(
                    model=models[method],
                    train=view.fine_tuning_of(benchmark, method),
                    profile=view.compute.profiled,
                    deterministic=view.compute.deterministic,
                )
                evaluations = evaluations_of(view, benchmark, method)
                # One node for each seed: the checkpoint, then all its evaluations in one job,
                # which load it once.
                for pretrain, seed in view.seed_pairs:
                    labels = Labels(
                        action="transfer",
                        method=method,
                        benchmark=benchmark,
                        seed=seed,
                        **_view_labels(view),
                    )
                    checkpoint = Step(
                        kind="checkpoint",
                        labels=labels,
                        config=fit_spec,
                        seed=seed,
                        inputs={
                            "data/0": datasets[f"{benchmark}{view.view_suffix}/train"],
                            **vocabulary_steps,
                            "init": checkpoints[view.view_suffix, method, pretrain],
                            **samples_dataset(view, datasets, fit_spec.train, benchmark),
                        },
                        keys={
                            "train": f"{view.key_prefix}transfers.{benchmark}.train",
                            **view.backbone_keys,
                        },
                    )
                    compute = view.compute
                    jobs = [StepJob(steps=(checkpoint,), **compute.of_transfer)]
                    if evaluations and self.last >= PHASES.index("evaluate"):
                        scored = method, seed, checkpoint
                        scores, scoring = self._make_scoring_steps(
                            view, scored, evaluations, datasets, vocabulary_steps
                        )
                        cells |= scores
                        jobs += scoring
                        # After the predictions, which are of the float32 parameters.
                        if view.keep.transfers == "bfloat16":
                            cast = Step(
                                kind="cast",
                                labels=dataclasses.replace(labels, action="cast"),
                                inputs={"checkpoint": checkpoint},
                            )
                            jobs.append(StepJob(steps=(cast,), cpus=1))
                    self.nodes.append(GraphNode(labels=labels, jobs=tuple(jobs)))
        return cells

    def _zero_shot(
        self,
        view: StudyView,
        datasets: Mapping[str, Step],
        vocabulary_steps: Mapping[str, Step],
        checkpoints: Mapping[tuple[str, Method, int], Step],
    ) -> dict[CellKey, Step]:
        """Adds a node per method and pretraining, in which its last stage is scored as it is.

        One checkpoint answers all zero-shot benchmarks. Their cells stand under the one transfer
        seed of the pretraining, so that all rows of a table have the same seeds.
        """
        cells: dict[CellKey, Step] = {}
        for method in view.methods:
            evaluations = evaluations_of(view, "", method)
            for pretrain, seed in view.seed_pairs:
                checkpoint = checkpoints[view.view_suffix, method, pretrain]
                scored = method, seed, checkpoint
                scores, scoring = self._make_scoring_steps(
                    view, scored, evaluations, datasets, vocabulary_steps
                )
                cells |= scores
                labels = Labels(action="zero-shot", method=method, seed=seed, **_view_labels(view))
                self.nodes.append(GraphNode(labels=labels, jobs=tuple(scoring)))
        return cells

    def _make_scoring_steps(
        self,
        view: StudyView,
        scored: tuple[Method, int, Step],
        evaluations: list[tuple[str, EvaluateSpec, ScoreSpec]],
        datasets: Mapping[str, Step],
        vocabulary_steps: Mapping[str, Step],
    ) -> tuple[dict[CellKey, Step], list[StepJob]]:
        """Returns the steps that score a checkpoint, and the jobs of these and of its answers.

        Args:
          view: the study at a resolution.
          scored: the method, the transfer seed and the checkpoint.
          evaluations: what it is scored on.
          datasets: name -> the step that makes a dataset.
          vocabulary_steps: role -> the step of the tokenizer and of the mask codec.
        """
        method, seed, checkpoint = scored
        place = _view_labels(view)
        predictions: dict[tuple[Step, EvaluateSpec], Step] = {}
        scores: dict[CellKey, Step] = {}
        for row, answers, spec in evaluations:
            cell = CellKey(benchmark=row, method=method, budget=spec.budget, seed=seed)
            labels = functools.partial(
                Labels,
                method=method,
                benchmark=row.removesuffix(view.view_suffix),
                seed=seed,
                budget=spec.budget,
                **place,
            )
            data = datasets[f"{row}/eval"]
            # Two rows that differ in their metric only share their predictions.
            answered = predictions.setdefault(
                (data, answers),
                Step(
                    kind="predictions",
                    labels=labels(action="evaluate"),
                    config=answers,
                    inputs={"checkpoint": checkpoint, "data": data},
                ),
            )
            scores[cell] = Step(
                kind="scores",
                labels=labels(action="score"),
                config=spec,
                inputs={
                    "predictions": answered,
                    "data": data,
                    **_mask_codec(spec.metric, vocabulary_steps),
                },
            )
        compute = view.compute
        jobs = [
            # A job of its own, which may ask for other devices than training.
            StepJob(
                steps=tuple(predictions.values()),
                cpus=compute.cpus_of_evaluation,
                gpus=compute.gpus_of_evaluation,
                pieces=compute.evaluation_pieces,
            ),
            # On a worker, too: a user's own metric may be slow, or end its process.
            StepJob(steps=tuple(scores.values()), cpus=1),
        ]
        return scores, jobs

    def _add_results_step(
        self, datasets: Mapping[str, Step], cells: Mapping[CellKey, Step]
    ) -> Step:
        # The table's inputs, by role:
        #
        #   chartqa:test_human/parcel/64/48213    scores: benchmark, method, budget, seed
        #   chance/chartqa:test_human             what guessing from the texts alone scores
        #   screened/web                          evaluation pictures found in a corpus
        chance: dict[str, Step] = {}
        for view in self.config.views:
            for name, row in view.rows.items():
                # Guesses are learnt from the training split, which only a fine-tuning prepares.
                if not training_of(row.benchmark, view.transfers[row.benchmark]):
                    continue
                train, rows = f"{trained_on(row.benchmark)}{view.view_suffix}/train", f"{name}/eval"
                chance[f"{CHANCE}{name}"] = self._add_step_node(
                    "chance",
                    Labels(
                        action="chance", subject=self._subject_of_labels(view, name, train, rows)
                    ),
                    config=metric_of(row.benchmark, view.transfers[row.benchmark]),
                    inputs={"train": datasets[train], "eval": datasets[rows]},
                )
        # Contamination is reported only if the pictures were left in the mixture.
        hygiene = self.config.hygiene
        is_reported = hygiene is not None and hygiene.contamination == "report"
        screened = {
            f"{SCREENED}{name}": datasets[name]
            for view in (self.config.views if is_reported else ())
            for name in mixture_of(view)
        }
        # Every input goes to one step; it is partial, so that a table comes out of what was made.
        return self._add_step_node(
            "results",
            Labels(action="results", subject=self.config.name),
            config=ResultsSpec(plan=results_plan(self.config, self.inputs)),
            inputs={
                **{str(key): step for key, step in cells.items()},
                **chance,
                **screened,
            },
            partial=True,
        )


def _view_labels(view: StudyView) -> dict[str, Any]:
    """Returns the labels that tell a view from the others of the study."""
    pixels = view.model.vision.image_px if view.is_higher else None
    return {"pixels": pixels, "backbone": view.backbone}


def _mask_codec(metric: str, vocabulary_steps: Mapping[str, Step]) -> dict[str, Step]:
    """Returns the codec that a metric reads masks with, by its role; {} if it reads none."""
    is_read = get_metric(metric).reads_masks
    return {r: step for r, step in vocabulary_steps.items() if r == "mask_codec" and is_read}


def mixture_of(view: StudyView) -> list[str]:
    """Returns the names of the mixture's datasets at a resolution."""
    return [f"{source.name}{view.view_suffix}" for source in view.sources]


def _step_digest(step: Step) -> str:
    """Returns a digest that is equal for two steps exactly if they make the same artifact."""
    reads = {role: id(read) for role, read in step.inputs.items()}
    return value_sha256([step.kind, step.config, step.seed, reads])
