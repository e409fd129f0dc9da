"""One benchmark of a study: how it is fine-tuned on, and the rows of the results it makes."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, ValidationInfo

from model.eval.metrics.registry import METRICS
from model.train.config import TrainConfig
from pipelines.benchmarks.registry import BENCHMARKS, Benchmark
from pipelines.prepare.config import PrepareConfig
from pipelines.sources.registry import SOURCES


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransferConfig:
    """One benchmark: fine-tuned on, and evaluated.

    Attributes:
      train: the recipe; what a config leaves out of it is the registry's, see `with_recipes`.
      path: the benchmark's folder below the data root; "" takes the usual one.
      train_split: published split, "a+b" for both; "" takes the registry's.
      eval_splits: published splits, each a row of the results; none takes the registry's rows.
      eval_text_len: as `train.text_len`, where its checkpoints answer; None takes that [tokens].
      prepare: settings that differ from the study's `prepare`; None for none.
      eval_limit: most examples evaluated of each row; None takes the whole split.
      transfer: False prepares the splits and stops there.
      allow_train_on_eval: whether what it is scored on may be trained on.
    """

    train: TrainConfig = TrainConfig()
    path: str = ""
    train_split: str = ""
    eval_splits: Annotated[tuple[str, ...], Field(json_schema_extra={"uniqueItems": True})] = ()
    eval_text_len: Annotated[int, Field(ge=1)] | None = None
    prepare: PrepareConfig | None = None
    eval_limit: Annotated[int, Field(ge=1)] | None = None
    transfer: bool = True
    allow_train_on_eval: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalRow:
    """One row of the results: a benchmark, scored on one split.

    Attributes:
      name: the benchmark's, with the split's where it has several rows: "refcoco:refcocog_val".
      benchmark: which.
      split: as its reader names it.
      main: whether the paper's headline retention is over this row among others.
    """

    name: str
    benchmark: str
    split: str
    main: bool = False


def rows_of(name: str, transfer: TransferConfig) -> tuple[EvalRow, ...]:
    """Returns the rows of the results that a benchmark makes."""
    main = {row.splits: row.suite == "main" for row in BENCHMARKS[name].rows}
    splits = transfer.eval_splits or tuple(main)
    return tuple(
        EvalRow(
            name=name if len(splits) == 1 else f"{name}:{split}",
            benchmark=name,
            split=split,
            main=main.get(split, False),
        )
        for split in splits
    )


def trained_on(name: str) -> str:
    """Returns the benchmark whose checkpoints one is scored with: mostly its own."""
    return BENCHMARKS[name].parent or name


def train_data(name: str, transfers: Mapping[str, TransferConfig]) -> tuple[str, str]:
    """Returns the training data of a benchmark's checkpoints: folder ("" for the usual), split."""
    trained = trained_on(name)
    own = transfers.get(trained)
    split = (own or transfers[name]).train_split or BENCHMARKS[trained].train_split
    return own.path if own else "", split


def check_transfer(name: str, transfer: TransferConfig) -> None:
    """Refuses a benchmark that nothing reads or, if it is to be scored, no metric scores.

    Raises:
      ValueError: naming the benchmark and the cure.
    """
    if name not in BENCHMARKS:
        raise ValueError(
            f"transfers: no benchmark {name!r}. Accepted: {', '.join(sorted(BENCHMARKS))}."
        )
    if len(set(transfer.eval_splits)) != len(transfer.eval_splits):
        raise ValueError(
            f"transfers.{name}.eval_splits must not repeat a split, got "
            f"{list(transfer.eval_splits)}."
        )
    if missing := {name, trained_on(name)} - set(SOURCES):
        raise ValueError(
            f"transfers: {name} cannot be prepared, no source reads {', '.join(sorted(missing))}; "
            f"leave it out."
        )
    check_splits(f"transfers.{name}.eval_splits", name, *transfer.eval_splits)
    if transfer.train_split:
        check_splits(f"transfers.{name}.train_split", trained_on(name), transfer.train_split)
    metric = BENCHMARKS[name].metric
    if transfer.transfer and metric not in METRICS:
        raise ValueError(
            f"transfers: {name} cannot be scored, its metric {metric!r} is not among "
            f"{', '.join(sorted(METRICS))}; leave it out, or only prepare it (transfer: false)."
        )


def check_splits(field: str, source: str, *splits: str) -> None:
    """Refuses splits that a source does not have.

    Raises:
      ValueError: naming the field, the split and those there are.
    """
    for split in splits:
        try:
            SOURCES[source].parse(split)
        except ValueError as error:
            raise ValueError(f"{field}: {error}") from None


def with_recipes(transfers: Any, info: ValidationInfo) -> Any:
    """Fills in what plain values of `transfers` leave out of the benchmarks' recipes.

    A zero-shot benchmark has its parent's: its checkpoints are the parent's.

    Raises:
      ValueError: if a zero-shot benchmark states a recipe of its own beside its parent.
    """
    model = info.data.get("model")
    if not isinstance(transfers, Mapping) or model is None:
        return transfers  # Wrong, or of wrong company: what follows tells of it.
    filled = {}
    for name, entry in transfers.items():
        if name not in BENCHMARKS or not isinstance(entry, Mapping):
            filled[name] = entry
            continue
        benchmark, stated = BENCHMARKS[name], entry.get("train") or {}
        if stated and benchmark.parent in transfers:
            raise ValueError(
                f"{name}.train: {name} is scored with the checkpoints of {benchmark.parent}; state "
                f"its recipe under {benchmark.parent}.train."
            )
        if isinstance(stated, Mapping):
            recipe = recipe_of(BENCHMARKS[trained_on(name)], model.vision.image_px)
            if "total_steps" in stated:
                recipe.pop("epochs", None)
            entry = {**entry, "train": {**recipe, **stated}}
        if benchmark.parent and benchmark.text_len != BENCHMARKS[benchmark.parent].text_len:
            entry = {"eval_text_len": benchmark.text_len, **entry}
        filled[name] = entry
    return filled


def recipe_of(benchmark: Benchmark, image_px: int) -> dict[str, Any]:
    """Returns the fields of `TrainConfig` that the registry states for a benchmark.

    Args:
      benchmark: one with a recipe.
      image_px: side of the model's images; the recipe of the nearest lower side is taken [pixels].
    """
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
