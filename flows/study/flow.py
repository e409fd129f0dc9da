"""The study, end to end: raw data -> datasets -> stages -> transfers -> results table."""

import dataclasses
from collections.abc import Mapping

from prefect import flow
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

from flows.lineage.rebuild import publish_results
from flows.steps.functions import DatasetSpec, EvaluateSpec, FilesSpec, FitSpec, list_files
from flows.steps.task import Session, Spec, submit
from flows.study.active import note_running
from flows.study.config import REFERENCE, Method, StudyConfig
from flows.study.display import Display
from flows.study.given import files_of, paths_of
from flows.study.plan import PHASES, Phase, datasets_of, num_steps, results_plan
from flows.study.runs import note_run
from flows.study.screening import screened
from flows.study.transfer import trained_on
from infra.ray.cluster import Cluster
from infra.store.store import Artifact, Store
from model.decode.decoding import Decoding
from model.eval.run import EvalConfig
from pipelines.benchmarks.registry import BENCHMARKS

_THREADS = 16
"""Steps in flight; most of them wait for a core of the cluster."""

Future = PrefectFuture[Artifact]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What a study came to.

    Attributes:
      results: key of the results artifact; None where the run stopped before the report.
      failed: "step: reason" of each step that failed.
      made, reused: number of steps.
      flow_run_id: of the Prefect run.
    """

    results: str | None
    failed: tuple[str, ...]
    made: int
    reused: int
    flow_run_id: str


@flow(
    name="study",
    flow_run_name="{config.name}",
    task_runner=ThreadPoolTaskRunner(max_workers=_THREADS),  # type: ignore[arg-type]
    persist_result=False,
)
def study(config: StudyConfig, store: str = ".parcel", until: Phase = "report") -> StudyResult:
    """Runs a study, re-using every step that a store already holds.

    Args:
      config: what to run.
      store: folder of the artifact store.
      until: the last phase to run.
    """
    opened = Store(store)
    cluster = Cluster(
        address=config.compute.ray_address,
        num_cpus=config.compute.num_cpus,
        compilation_cache=opened.cache("jax"),
    )
    context = FlowRunContext.get()
    run_id = str(context.flow_run.id) if context and context.flow_run else ""
    with note_running(opened.root, run_id), Display(num_steps(config, until)) as display:
        session = Session(config.name, opened, cluster, display)
        try:
            results = _Study(session, config, until).run()
        finally:
            cluster.stop()
    result = StudyResult(
        results=results.key if results else None,
        failed=tuple(f"{name}: {why}" for name, why in session.failures.items()),
        made=display.counts["made"],
        reused=display.counts["reused"],
        flow_run_id=run_id,
    )
    if results:
        publish_results(opened, config.name, results.key)
        asked = dataclasses.asdict(config)
        note_run(opened, asked, results.key, flow_run_id=run_id, failed=result.failed)
    return result


class _Study:
    """The graph of one study, phase by phase."""

    def __init__(self, session: Session, config: StudyConfig, until: Phase) -> None:
        self.session = session
        self.config = config
        self.last = PHASES.index(until)
        self.given = paths_of(config)

    def run(self) -> Artifact | None:
        """Submits every step in order, and waits; returns the results."""
        datasets = self._prepare()
        if self.last < PHASES.index("train"):
            self._await(datasets)
            return None
        shared = self._vocabulary(datasets)
        checkpoints = self._pretrain(datasets, shared)
        if self.last < PHASES.index("transfer"):
            self._await(checkpoints)
            return None
        transfers = self._transfer(datasets, shared, checkpoints)
        if self.last < PHASES.index("evaluate"):
            self._await({f"{b} {m} {s}": f for (b, m, s), f in transfers.items()})
            return None
        predictions = self._evaluate(datasets, transfers)
        chance = {
            name: self._submit(
                Spec(kind="chance", name=f"chance {name}", config=BENCHMARKS[row.benchmark].metric),
                {
                    "train": datasets[f"{trained_on(row.benchmark)}/train"],
                    "eval": datasets[f"{name}/eval"],
                },
            )
            for name, row in self.config.rows.items()
        }
        scored = self._await(predictions)
        guessed = self._await({f"chance/{name}": future for name, future in chance.items()})
        if self.last < PHASES.index("report") or not scored:
            return None
        plan = results_plan(self.config)
        spec = Spec(kind="results", name=f"results {self.config.name}", config=plan)
        return self._await({"results": self._submit(spec, scored | guessed)}).get("results")

    def _prepare(self) -> dict[str, Future]:
        corpus = None
        if self.config.data_root is None:
            corpus = self._submit(Spec(kind="corpus", name="corpus", config=self.config.corpus), {})
        futures: dict[str, Future] = {}
        for name, source in datasets_of(self.config).items():
            raw = corpus if corpus is not None else self._files(name, source)
            spec = Spec(
                kind="dataset",
                name=f"prepare {name}",
                config=source,
                location=self.config.data_root,
            )
            futures[name] = self._submit(spec, {"raw": raw})
        return futures | screened(self._submit, self.config, futures)

    def _files(self, name: str, source: DatasetSpec) -> Future:
        """Notes the raw files a dataset is made from, by digest: the begin of its lineage."""
        assert self.config.data_root is not None
        listing = list_files(source, self.config.data_root)
        spec = Spec(kind="files", name=f"files {name}", config=FilesSpec(files=listing))
        return self._submit(spec, {})

    def _vocabulary(self, datasets: Mapping[str, Future]) -> dict[str, Future]:
        config = self.config
        held_out = {f"{name}/eval" for name in config.eval_rows}
        train = {role: future for role, future in datasets.items() if role not in held_out}
        pieces, codec = self._given("tokenizer.path"), self._given("mask_codec.path")
        made = {
            "tokenizer": self._submit(
                Spec(kind="tokenizer", name="tokenizer", config=config.tokenizer,
                     seed=config.seed, location=config.tokenizer.path),
                pieces or train,
            )
        }  # fmt: skip
        if config.mask_codec is not None:
            spec = Spec(kind="mask_codec", name="mask codec", config=config.mask_codec,
                        seed=config.seed, num_cpus=config.compute.cpus_per_cell)  # fmt: skip
            made["mask_codec"] = self._submit(spec, {**train, **codec})
        return made

    def _given(self, key: str) -> dict[str, Future]:
        """Notes what the config's `key` names, by digest; nothing where it names nothing."""
        if key not in self.given:
            return {}
        spec = Spec(kind="files", name=f"files {key}", config=files_of(self.given[key]))
        return {"given": self._submit(spec, {})}

    def _pretrain(
        self, datasets: Mapping[str, Future], shared: Mapping[str, Future]
    ) -> dict[str, Future]:
        config = self.config
        mixture = {f"data/{i}": datasets[source.name] for i, source in enumerate(config.sources)}
        start: dict[str, Future] = {}
        if config.start is not None:
            spec = Spec(kind="start", name="start", location=config.start)
            start = {"init": self._submit(spec, self._given("start"))}
        stage1 = self._submit(
            Spec(
                kind="checkpoint",
                name="stage1 vanilla",
                config=FitSpec(model=config.model_of(REFERENCE), train=config.stage1),
                seed=config.seed,
                num_cpus=config.compute.cpus_per_stage,
            ),
            {**mixture, **shared, **start},
        )
        return {
            method: self._submit(
                Spec(
                    kind="checkpoint",
                    name=f"intermediary {method}",
                    config=FitSpec(
                        model=config.model_of(method), train=config.intermediary_of(method)
                    ),
                    seed=config.seed,
                    num_cpus=config.compute.cpus_per_cell,
                ),
                {**mixture, **shared, "init": stage1},
            )
            for method in config.methods
        }

    def _transfer(
        self,
        datasets: Mapping[str, Future],
        shared: Mapping[str, Future],
        checkpoints: Mapping[str, Future],
    ) -> dict[tuple[str, Method, int], Future]:
        return {
            (benchmark, method, seed): self._submit(
                Spec(
                    kind="checkpoint",
                    name=f"transfer {method} {benchmark} seed={seed}",
                    config=FitSpec(
                        model=self.config.model_of(method, transfer=True),
                        train=self.config.fine_tuning_of(benchmark, method),
                    ),
                    seed=seed,
                    num_cpus=self.config.compute.cpus_per_cell,
                ),
                {"data/0": datasets[f"{benchmark}/train"], **shared, "init": checkpoints[method]},
            )
            for benchmark in self.config.fine_tunings
            for method in self.config.methods
            for seed in self.config.seeds
        }

    def _evaluate(
        self,
        datasets: Mapping[str, Future],
        transfers: Mapping[tuple[str, Method, int], Future],
    ) -> dict[str, Future]:
        return {
            f"{name}/{method}/{budget}/{seed}": self._submit(
                Spec(
                    kind="predictions",
                    name=f"evaluate {method} {name} seed={seed} budget={budget}",
                    config=EvaluateSpec(
                        benchmark=row.benchmark, budget=budget, decode=self._decode(row.benchmark)
                    ),
                    num_cpus=self.config.compute.cpus_per_cell,
                ),
                {
                    "checkpoint": transfers[trained_on(row.benchmark), method, seed],
                    "data": datasets[f"{name}/eval"],
                },
            )
            for name, row in self.config.rows.items()
            for method in self.config.methods
            for seed in self.config.seeds
            for budget in self.config.budgets_of(method)
        }

    def _decode(self, benchmark: str) -> EvalConfig:
        transfer = self.config.transfers[benchmark]
        return EvalConfig(
            metric=BENCHMARKS[benchmark].metric,
            batch_size=self.config.eval_batch_size,
            text_len=transfer.eval_text_len or transfer.train.text_len,
            max_frames=transfer.train.max_frames,
            decoding=Decoding(beams=BENCHMARKS[benchmark].beams),
        )

    def _submit(self, spec: Spec, inputs: Mapping[str, Artifact | Future]) -> Future:
        return submit(self.session, spec, inputs, retries=self.config.compute.retries)

    def _await(self, futures: Mapping[str, Future]) -> dict[str, Artifact]:
        """Waits for all and returns those that came; the session knows why others did not."""
        done: dict[str, Artifact] = {}
        for role, future in futures.items():
            future.wait()
            if future.state.is_completed():
                done[role] = future.result()
        return done
