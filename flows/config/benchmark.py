"""Config of one benchmark of a study: how it is fine-tuned on, and which rows it is scored in."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import Field, WrapValidator

from flows.config.licences import StatedLicence
from flows.config.references import metric_reference, reader_reference
from infra.errors import did_you_mean
from model.decode.config import Decoding
from model.eval.metrics.registry import METRICS, get_metric
from model.train.config import TrainConfig
from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow, prompt_fields
from pipelines.prepare.config import PrepareConfig
from pipelines.records.licence import Licence
from pipelines.sources.own_source import PROMPT, OwnSource
from pipelines.sources.paper_groups import is_left_out
from pipelines.sources.registry import BENCHMARKS, OWN_FORMATS, SOURCES, source_spec

USER_RECIPE = FinetuneRecipe(batch_size=128, lr_pg1=5e-6, lr_pg2=3e-6, epochs=10)
"""Default recipe for users' own benchmarks: that of OKVQA, a small set of questions."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")


def _null_or(value: Any, check: Callable[[Any], Any]) -> Any:
    # A config may state null, which `normalise` replaces by the registry's recipe.
    return value if value is None else check(value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """One benchmark to fine-tune on and to evaluate.

    Attributes:
      train: the recipe; fields that a config leaves out come from the registry.
      reader: reader of a benchmark of yours: "jsonl", "csv", or a function as "file.py:name",
        "module:name" or an entry point of `parcel.readers`; "" for a published benchmark.
      path: the benchmark's folder below the data root; "" takes the usual one, that of its name.
      prompt: template of the prefix; {text} stands for the row's question, {lang} for its language.
        A published benchmark has its own, which another one with the same fields may replace; in a
        benchmark of yours it is for rows that do not hold the whole prefix.
      metric: name of a metric in the registry, or a function of yours as in `reader`, or an entry
        point of `parcel.metrics`; "" takes the benchmark's own for fine-tuned or zero-shot answers.
      decoding: how answers are decoded; None takes the registry's number of beams, else greedy.
      train_split: split to train on, "a+b" for two; "" takes the registry's, or "train" for a
        benchmark of yours.
      eval_splits: splits to evaluate, each a row of the results; if empty, the registry's rows, or
        "val" for a benchmark of yours.
      num_frames: frames per video; None takes that of `prepare`, else the benchmark's usual number,
        16 for a benchmark of yours.
      frame_stride: distance of these frames at 25 frames a second; None takes that of `prepare`,
        else the benchmark's usual one, 30 for a benchmark of yours [frames].
      eval_text_len: `text_len` at evaluation; None takes `train.text_len` [tokens].
      licence: licence of its rows that state none themselves, as in `SourceConfig`.
      prepare: preparation settings of the benchmark; None takes the study's, without augmentation.
      eval_limit: most examples evaluated per row; None takes the whole split.
      transfer: whether the benchmark is fine-tuned on and scored; False only prepares its splits.
      zero_shot: whether it is scored with the checkpoint of the last stage, without fine-tuning.
      allow_train_on_eval: whether training on the scored splits is allowed.
    """

    train: Annotated[TrainConfig, WrapValidator(_null_or)] = TrainConfig()
    reader: str = ""
    path: str = ""
    prompt: str = ""
    metric: str = ""
    decoding: Decoding | None = None
    train_split: str = ""
    eval_splits: Annotated[tuple[str, ...], Field(json_schema_extra={"uniqueItems": True})] = ()
    num_frames: Annotated[int, Field(ge=1)] | None = None
    frame_stride: Annotated[int, Field(ge=1)] | None = None
    eval_text_len: Annotated[int, Field(ge=1)] | None = None
    licence: StatedLicence = Licence()
    prepare: PrepareConfig | None = None
    eval_limit: Annotated[int, Field(ge=1)] | None = None
    transfer: bool = True
    zero_shot: bool = False
    allow_train_on_eval: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRow:
    """One row of the results: a benchmark, scored on one split.

    Attributes:
      name: the benchmark's name, with the split's if it has several rows: "refcoco:refcocog_val".
      benchmark: name of the benchmark.
      split: name of the split, as its reader names it.
      paper_row: the row of the paper's tables that it is; None for another split, and for a
        user's own benchmark.
    """

    name: str
    benchmark: str
    split: str
    paper_row: ResultRow | None = None

    @property
    def in_means(self) -> bool:
        """Whether means and comparisons over benchmarks are over this row, too."""
        return self.paper_row is None or not is_left_out(self.paper_row)


def benchmark_of(name: str, transfer: TransferConfig) -> Benchmark:
    """Returns the registry's entry of a benchmark, or an equivalent entry for a user's own."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    return user_benchmark(name, transfer.metric, transfer.prompt, transfer.eval_splits)


def user_benchmark(
    name: str, metric: str = "", prompt: str = "", splits: Sequence[str] = ()
) -> Benchmark:
    """Returns the entry, as the registry would have it, of a user's own benchmark."""
    # In the registry's own form, so that rows, recipes and metrics are found in one way.
    splits = splits or ("val",)
    return Benchmark(
        name=name,
        config="",
        prompt=prompt or PROMPT,
        text_len=64,
        metric=metric,
        tune_split="train",
        final_split="train",
        eval_split=splits[0],
        rows=tuple(ResultRow(titles=(name,), split=split, suite="other") for split in splits),
        recipes={224: USER_RECIPE},
    )


def eval_window_of(name: str) -> str:
    """Returns where in a video the frames for evaluation begin; "first" for users' benchmarks."""
    benchmark = BENCHMARKS.get(name)
    return benchmark.eval_window if benchmark else "first"


def metric_of(name: str, transfer: TransferConfig) -> str:
    """Returns the metric of a benchmark: a name of the registry, or "module:name"."""
    benchmark = benchmark_of(name, transfer)
    own = (transfer.zero_shot and benchmark.zero_shot_metric) or benchmark.metric
    return metric_reference(f"transfers.{name}.metric", transfer.metric or own)


def decoding_of(name: str, transfer: TransferConfig) -> Decoding:
    """Returns the settings for decoding a benchmark's answers."""
    return transfer.decoding or Decoding(beams=benchmark_of(name, transfer).beams)


def source_of(name: str, transfer: TransferConfig | None) -> str | OwnSource:
    """Returns the source of a benchmark; for a published one, `transfer` may be None."""
    if transfer is None or (name in BENCHMARKS and not transfer.prompt):
        return name
    if name in BENCHMARKS:
        return OwnSource(reader=name, name=name, prompt=transfer.prompt)
    prompt = benchmark_of(name, transfer).prompt
    reader = reader_reference(f"transfers.{name}.reader", transfer.reader, OWN_FORMATS)
    return OwnSource(reader=reader, name=name, prompt=prompt)


def eval_rows_of(name: str, transfer: TransferConfig) -> tuple[EvalRow, ...]:
    """Returns a benchmark's rows of the results."""
    #   one split scored        chartqa
    #   several                 refcoco:refcocog_val, …
    rows = {row.splits: row for row in benchmark_of(name, transfer).rows}
    splits = transfer.eval_splits or tuple(rows)
    return tuple(
        EvalRow(
            name=name if len(splits) == 1 else f"{name}:{split}",
            benchmark=name,
            split=split,
            paper_row=rows.get(split) if name in BENCHMARKS else None,
        )
        for split in splits
    )


def trained_on(name: str) -> str:
    """Returns the benchmark whose checkpoints score this one: its parent if it is zero-shot."""
    return (BENCHMARKS[name].parent or name) if name in BENCHMARKS else name


def training_of(name: str, transfer: TransferConfig) -> str:
    """Returns the benchmark whose fine-tuning makes the checkpoints that score this one.

    It is "" where the stages alone make them.
    """
    return "" if transfer.zero_shot else trained_on(name)


def train_data(name: str, transfers: Mapping[str, TransferConfig]) -> tuple[str, str]:
    """Returns (folder, split) of the data that a benchmark's checkpoints are trained on.

    The folder is "" where the usual one is taken.
    """
    # The parent's settings where the study has it, too; else the split that this benchmark states,
    # in the usual folder.
    trained = trained_on(name)
    parent_transfer = transfers.get(trained)
    split = (parent_transfer or transfers[name]).train_split
    split = split or benchmark_of(trained, parent_transfer or transfers[name]).train_split
    return parent_transfer.path if parent_transfer else "", split


def check_transfer(name: str, transfer: TransferConfig) -> None:
    """Refuses a benchmark that has no reader, or that is to be scored and has no metric.

    Raises:
      ValueError: naming the benchmark and the cure.
    """
    # A published benchmark has its reader and its prompt; a user's own has to say them.
    if name in BENCHMARKS:
        _check_published(name, transfer)
    else:
        _check_user_benchmark(name, transfer)
    if len(set(transfer.eval_splits)) != len(transfer.eval_splits):
        raise ValueError(
            f"transfers.{name}.eval_splits must not repeat a split, got "
            f"{list(transfer.eval_splits)}."
        )
    check_splits(f"transfers.{name}.eval_splits", source_of(name, transfer), *transfer.eval_splits)
    if transfer.train_split:
        trained = source_of(trained_on(name), transfer)
        check_splits(f"transfers.{name}.train_split", trained, transfer.train_split)


def _check_published(name: str, transfer: TransferConfig) -> None:
    if transfer.reader:
        raise ValueError(
            f"transfers.{name}.reader must be left out, got {transfer.reader!r}: {name} is a "
            f"published benchmark, which has its own; a benchmark of yours needs another name."
        )
    # A field that its rows do not fill would be an error at the first of them.
    fields = prompt_fields(BENCHMARKS[name].prompt)
    if unknown := prompt_fields(transfer.prompt) - fields:
        accepted = ", ".join(f"{{{field}}}" for field in sorted(fields))
        raise ValueError(
            f"transfers.{name}.prompt may hold {accepted or 'no field'}, got {{{min(unknown)}}} in "
            f"{transfer.prompt!r}."
        )
    benchmark = BENCHMARKS[name]
    if not (benchmark.final_split or benchmark.parent or transfer.zero_shot):
        raise ValueError(
            f"transfers.{name}.zero_shot must be true, got false: {name} has no training split; "
            f"leave the key out."
        )
    # Both the benchmark and, for a zero-shot one, the parent that its checkpoints learn from.
    if missing := {name, trained_on(name)} - set(SOURCES):
        raise ValueError(
            f"transfers: {name} cannot be prepared, no source reads {', '.join(sorted(missing))}; "
            f"leave it out."
        )
    metric = benchmark.metric
    if transfer.metric:
        metric_of(name, transfer)
    elif transfer.transfer and metric not in METRICS:
        raise ValueError(
            f"transfers: {name} cannot be scored, its metric {metric!r} is not among "
            f"{', '.join(sorted(METRICS))}; leave it out, or only prepare it (transfer: false)."
        )


def _check_user_benchmark(name: str, transfer: TransferConfig) -> None:
    where = f"transfers.{name}"
    # A name that is neither published nor has a reader is most likely misspelt.
    if not transfer.reader:
        hint = did_you_mean(name, BENCHMARKS) or "."
        raise ValueError(
            f"transfers: no benchmark {name!r}{hint} Accepted: "
            f"{', '.join(sorted(BENCHMARKS))}; or one of your own, which says its reader: "
            f"{', '.join(OWN_FORMATS)}, or a function."
        )
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"transfers: the name of a benchmark must be lower-case letters, digits, - and _, got "
            f"{name!r}."
        )
    reader_reference(f"{where}.reader", transfer.reader, OWN_FORMATS)
    if unknown := prompt_fields(transfer.prompt) - {"text", "lang"}:
        raise ValueError(
            f"{where}.prompt may hold {{text}} and {{lang}}, got {{{min(unknown)}}} in "
            f"{transfer.prompt!r}."
        )
    # Only prepared, to be compared with the mixture: no metric is needed.
    if not transfer.transfer:
        return
    if not transfer.metric:
        raise ValueError(
            f"{where}.metric must be given: one of {', '.join(METRICS)}, or a function as "
            f"file.py:function or module:function."
        )
    # Rows of a user's own hold text answers; a mask metric would score nothing.
    if get_metric(metric_of(name, transfer)).reads_masks:
        raise ValueError(
            f"{where}.metric must not be a mask metric, because your own rows have no masks, got "
            f"{transfer.metric!r}."
        )


def check_splits(field: str, source: str | OwnSource, *splits: str) -> None:
    """Refuses splits that a source does not have.

    Raises:
      ValueError: naming the field, the split and the splits that exist.
    """
    for split in splits:
        try:
            source_spec(source).parse(split)
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None


def recipe_of(benchmark: Benchmark, image_px: int) -> dict[str, Any]:
    """Returns the fields of `TrainConfig` that the registry states for a benchmark.

    Args:
      benchmark: a benchmark; without recipes, its prompts' length is all that is stated.
      image_px: side of the model's images; takes the recipe for the largest side up to it, or the
        one for the smallest side [pixels].
    """
    if not benchmark.recipes:
        return {"text_len": benchmark.text_len}
    sides = sorted(benchmark.recipes)
    recipe = benchmark.recipes[max((side for side in sides if side <= image_px), default=sides[0])]
    return {
        "epochs": recipe.epochs,
        "batch_size": recipe.batch_size,
        "peak_lr": recipe.lr_pg2,
        "weight_decay": recipe.weight_decay,
        "label_smoothing": recipe.label_smoothing,
        "dropout": recipe.dropout,
        "freeze_vision": recipe.freeze_vision,
        "text_len": benchmark.text_len,
        "sampling": benchmark.sampling,
    }
