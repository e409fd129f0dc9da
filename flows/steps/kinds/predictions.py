"""Predictions: a checkpoint's answers to one split at one budget; kind `scores` scores them.

All budgets are answered together, so that images are decoded and pass the vision tower once.

Files:
  predictions.jsonl: a row per record: prediction, answers, digest of the source
"""

import dataclasses
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

from flows.steps.families import FAMILY_REGISTRIES, PROMPT, TEXT, VISION, family_entries
from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from infra.store.digest import file_sha256, listing_sha256
from model import files
from model.connector.registry import class_and_routing, connector_modules
from model.decode.config import DecodeConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """The answers of one checkpoint to one split.

    Attributes:
      budget: soft tokens per frame.
      decode: settings of decoding.
      connector: kind of the checkpoint's connector, since its code answers; "" in manifests of
        earlier versions, unless it is the user's own.
      vision: family of the checkpoint's tower, likewise.
      text: family of its decoder.
      prompt: its prompt template.
    """

    budget: int
    decode: DecodeConfig
    connector: str = ""
    vision: str = VISION
    text: str = TEXT
    prompt: str = PROMPT


def make(work: StepContext) -> Iterator[Progress]:
    """Answers the input `data` with the input `checkpoint`."""
    yield from make_together([work])


def make_together(works: Sequence[StepContext]) -> Iterator[Progress]:
    """Answers one split at several budgets of one checkpoint."""
    from model.eval.run import Answered, predict

    # All works have one checkpoint and one split; only the budget differs, and where answers go.
    first = works[0]
    seconds = yield from predict(
        first.places["checkpoint"],
        data=first.places["data"],
        config=first.config.decode,
        out={work.config.budget: str(work.out) for work in works},
        known=[Answered.from_json(piece) for piece in first.pieces],
    )
    # The time of an answer stands in the manifest alone, and in no file: it is never twice the
    # same.
    for work in works:
        with (work.out / files.PREDICTIONS).open("rb") as lines:
            work.counts["num"] = sum(1 for _ in lines)
        # Of parameters that were kept in another type than they were trained in.
        checkpoint = work.artifacts["checkpoint"].manifest
        if precision := checkpoint.counts.get("precision"):
            work.counts["precision"] = precision
        if work.config.budget in seconds:
            work.counts["answer_ms"] = round(1e3 * seconds[work.config.budget], 3)
        # Small models often give the same answers. Their scores must not be one artifact all the
        # same, since it would lead from the cell of one model to the checkpoint of another.
        work.content = listing_sha256(
            {
                files.PREDICTIONS: file_sha256(work.out / files.PREDICTIONS),
                "checkpoint": checkpoint.content,
            }
        )


def make_piece(
    works: Sequence[StepContext], piece: int, num_pieces: int
) -> Generator[Progress, None, bytes]:
    """Answers a piece of one split, at several budgets of one checkpoint."""
    from model.eval.run import predict_piece

    # As `make_together`, but for some of the items.
    first = works[0]
    answered = yield from predict_piece(
        first.places["checkpoint"],
        data=first.places["data"],
        config=first.config.decode,
        budgets=[work.config.budget for work in works],
        piece=piece,
        num_pieces=num_pieces,
    )
    return answered.to_json().encode()


def _config_without_budget(spec: EvaluateSpec) -> EvaluateSpec:
    return dataclasses.replace(spec, budget=0)


def _connector_of_evaluation(spec: Mapping[str, Any]) -> str:
    return spec.get("connector", "")


def _num_tokens(config: EvaluateSpec | Mapping[str, Any]) -> float:
    """Returns the tokens of an answer: those of a frame and those of the text."""
    match config:
        case EvaluateSpec(budget=budget, decode=decode):
            return float(budget + decode.text_len)
        case {"budget": budget, "decode": {"text_len": text_len}}:
            return float(budget + text_len)
    return 1.0


_CONNECTORS = connector_modules.__module__

PREDICTIONS = Kind(
    name="predictions",
    make=make,
    spec=EvaluateSpec,
    make_together=make_together,
    make_piece=make_piece,
    group_value=_config_without_budget,
    libraries=("pillow", "sentencepiece"),
    stop=(_CONNECTORS, *FAMILY_REGISTRIES),
    also=lambda spec: connector_modules(_connector_of_evaluation(spec)),
    entries=lambda spec: {
        _CONNECTORS: class_and_routing(_connector_of_evaluation(spec)),
        **family_entries(
            spec.get("vision", VISION), spec.get("text", TEXT), spec.get("prompt", PROMPT)
        ),
    },
    functions=lambda spec: [_connector_of_evaluation(spec)],
    holds="answers",
    items="data",
    headline=lambda config, counts: "",  # Their score says all.
    sample="scored on it",
    work=_num_tokens,
)
