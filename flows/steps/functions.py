"""What each kind of step does: thin functions over `pipelines` and `model`.

They run in whatever process the order is sent to, so the heavy imports are inside.
"""

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from flows.report.cells import Plan, Score
from flows.steps.worker import Progress, Work
from model.config import ModelConfig
from model.eval.run import PREDICTIONS, EvalConfig, evaluate
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig

CODE: dict[str, tuple[str, ...]] = {
    "corpus": ("pipelines.synthetic",),
    "files": (),
    "dataset": (
        "pipelines.records", "pipelines.sources", "pipelines.transforms",
        "pipelines.benchmarks", "pipelines.video", "pipelines.prepare",
    ),
    "screened": ("pipelines.hygiene", "pipelines.records"),
    "start": (),
    "tokenizer": ("model.text.tokenizer",),
    "mask_codec": ("model", "pipelines.records"),
    "checkpoint": ("model", "pipelines.records"),
    "predictions": ("model", "pipelines.records"),
    "chance": ("model.eval", "pipelines.records"),
    "results": ("flows.report",),
}  # fmt: skip
"""Kind of step -> modules whose code its key covers."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FilesSpec:
    """Raw files as (path below the data root, sha256, size) each."""

    files: tuple[tuple[str, str, int], ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSpec:
    """One dataset: a reader, its folder and split, and how to prepare it."""

    reader: str
    path: str
    split: str
    prepare: PrepareConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSpec:
    """One training stage."""

    model: ModelConfig
    train: TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """One evaluation of one checkpoint."""

    benchmark: str
    budget: int
    decode: EvalConfig


def list_files(spec: DatasetSpec, data_root: str) -> tuple[tuple[str, str, int], ...]:
    """Returns the raw files a dataset is made from, with their digests."""
    from pipelines.sources.listing import inventory

    found = inventory(spec.reader, spec.split, data_root, path=spec.path or None)
    return tuple((file.path, file.sha256, file.size) for file in found)


def _corpus(work: Work) -> Iterator[Progress]:
    from pipelines.synthetic.render import render_corpus

    yield from _streamed(lambda report: render_corpus(work.config, str(work.out), report))
    work.counts["files"] = sum(path.is_file() for path in work.out.rglob("*"))


def _files(work: Work) -> Iterator[Progress]:
    lines = [f"{sha256}  {size}  {path}\n" for path, sha256, size in work.config.files]
    (work.out / "files.txt").write_text("".join(lines))
    work.counts["files"] = len(lines)
    yield Progress(done=1, total=1)


def _dataset(work: Work) -> Iterator[Progress]:
    from pipelines.prepare.run import prepare

    spec: DatasetSpec = work.config
    # Raw data of one's own lie where they lie; a rendered corpus is an artifact.
    data_root = work.location or str(work.inputs["raw"])
    info = yield from _streamed(
        lambda report: prepare(
            spec.prepare,
            source=spec.reader,
            split=spec.split,
            data_root=data_root,
            path=spec.path or None,
            out=str(work.out),
            on_progress=report,
        )
    )
    work.counts.update(inputs=info.num_inputs, records=info.num_records, rejected=info.num_rejected)


def _screened(work: Work) -> Iterator[Progress]:
    from pipelines.hygiene.screen import screen

    against = {role: str(path) for role, path in sorted(work.inputs.items()) if role != "dataset"}
    counts = yield from _streamed(
        lambda report: screen(
            str(work.inputs["dataset"]),
            work.config,
            against=against,
            out=str(work.out),
            on_progress=report,
        )
    )
    work.counts.update(counts)


def _start(work: Work) -> Iterator[Progress]:
    import shutil

    shutil.copytree(work.location or "", work.out, dirs_exist_ok=True)
    work.content = (work.out / "digest.txt").read_text().strip()
    yield Progress(done=1, total=1)


def _tokenizer(work: Work) -> Iterator[Progress]:
    import shutil
    from itertools import chain

    from model.text.tokenizer import train_tokenizer
    from pipelines.records.dataset import Dataset

    target = work.out / "tokenizer.model"
    if work.location:
        shutil.copyfile(work.location, target)
    else:
        texts = (
            text
            for role in sorted(work.inputs)
            for record in Dataset(work.inputs[role]).records()
            for text in chain(*(record.prefixes or [(record.prefix,)]), record.suffixes)
        )
        train_tokenizer(texts, str(target), work.config.vocab_size)
    yield Progress(done=1, total=1)


def _mask_codec(work: Work) -> Iterator[Progress]:
    import json

    from model.masks.training import REPORT, adopt_codec, collect_crops, fit_codec

    data = [str(path) for role, path in sorted(work.inputs.items()) if role != "given"]
    crops = collect_crops(data)
    if work.config.path is not None:
        made = adopt_codec(crops, work.config, str(work.out))
    else:
        made = fit_codec(crops, work.config, str(work.out), work.seed or 0)
    for item in made:
        yield Progress(done=item.step, total=item.total, note=f"loss {item.loss:.3f}")
    work.counts.update(json.loads((work.out / REPORT).read_text()))


def _checkpoint(work: Work) -> Iterator[Progress]:
    from model.train.loop import fit

    spec: FitSpec = work.config
    data = [str(path) for role, path in sorted(work.inputs.items()) if role.startswith("data/")]
    codec = work.inputs.get("mask_codec")
    steps, loss = 0, float("nan")
    for item in fit(
        spec.model,
        spec.train,
        data=data,
        init=str(work.inputs["init"]) if "init" in work.inputs else None,
        tokenizer=str(work.inputs["tokenizer"] / "tokenizer.model"),
        mask_codec=str(codec / "mask_codec.npz") if codec else None,
        scratch=str(work.scratch),
        out=str(work.out),
        seed=work.seed or 0,
    ):
        steps, loss = item.step, item.loss
        yield Progress(done=item.step, total=item.total, note=f"loss {item.loss:.3f}")
    work.counts.update(steps=steps, loss=round(loss, 4))
    work.content = (work.out / "digest.txt").read_text().strip()


def _predictions(work: Work) -> Iterator[Progress]:
    import json

    spec: EvaluateSpec = work.config
    for item in evaluate(
        str(work.inputs["checkpoint"]),
        data=str(work.inputs["data"]),
        budget=spec.budget,
        config=spec.decode,
        out=str(work.out),
    ):
        yield Progress(done=item.step, total=item.total)
    result = json.loads((work.out / "score.json").read_text())
    work.counts.update(score=result["score"], num=result["num"])


def _chance(work: Work) -> Iterator[Progress]:
    import json

    from model.eval.chance import blind_baseline

    blind = blind_baseline(str(work.inputs["train"]), str(work.inputs["eval"]), work.config)
    (work.out / "chance.json").write_text(json.dumps({"score": blind.score}) + "\n")
    rows = [{"id": key, "source_sha256": sha, "score": value} for key, sha, value in blind.items]
    (work.out / PREDICTIONS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    work.counts["score"] = round(blind.score, 4)
    yield Progress(done=1, total=1)


def _results(work: Work) -> Iterator[Progress]:
    import json

    from flows.lineage.pages import page_link
    from flows.report.build import build
    from flows.report.items import read_items
    from flows.report.plot import plot
    from flows.report.render import FORMATS, render

    plan: Plan = work.config
    scores, chance, guesses = [], {}, {}
    for role, folder in work.inputs.items():
        parts = role.split("/")
        if parts[0] == "chance":
            blind = json.loads((folder / "chance.json").read_text())["score"]
            chance[parts[1]] = blind
            guesses[parts[1]] = read_items(folder / PREDICTIONS, blind)
            continue
        benchmark, method, budget, seed = parts
        found = json.loads((folder / "score.json").read_text())
        scores.append(
            Score(
                benchmark=benchmark, method=method, budget=int(budget), seed=int(seed),
                score=found["score"], metric=found["metric"], artifact=folder.parents[1].name,
                items=read_items(folder / PREDICTIONS, found["score"]),
            )
        )  # fmt: skip
    report = build(plan, scores, chance, guesses)
    for form in FORMATS:
        (work.out / f"results.{form}").write_text(render(report, form))
    linked = render(report, "md", link=lambda c: page_link(c.artifacts[0]) if c.artifacts else None)
    (work.out / "linked.md").write_text(linked)
    plot(report, work.out / "results.png")
    work.counts["cells"] = len(scores)
    yield Progress(done=1, total=1)


FUNCTIONS: dict[str, Callable[[Work], Iterator[Progress]]] = {
    "corpus": _corpus,
    "files": _files,
    "dataset": _dataset,
    "screened": _screened,
    "start": _start,
    "tokenizer": _tokenizer,
    "mask_codec": _mask_codec,
    "checkpoint": _checkpoint,
    "predictions": _predictions,
    "chance": _chance,
    "results": _results,
}


def _streamed(function: Callable[[Callable[..., None]], Any]) -> Any:
    """Runs a function that reports through a callback, and yields what it reports."""
    reports: queue.Queue[Progress | None] = queue.Queue()
    outcome: dict[str, Any] = {}

    def report(done: int, total: int, note: str = "") -> None:
        reports.put(Progress(done=done, total=total, note=note))

    def run() -> None:
        try:
            outcome["value"] = function(report)
        except BaseException as error:
            outcome["error"] = error
        finally:
            reports.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while (item := reports.get()) is not None:
        yield item
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    return outcome["value"]
