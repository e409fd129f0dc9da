"""A checkpoint: one stage of training, from its inputs to its parameters."""

import dataclasses
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from model import files
from model.config import ModelConfig
from model.train.config import TrainConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSpec:
    """One training stage."""

    model: ModelConfig
    train: TrainConfig


def make(work: Work) -> Iterator[Progress]:
    """Trains the stage of a `FitSpec`, on from `init` if there is one."""
    from model.seeds import Seeds
    from model.train.loop import StagePaths, fit

    spec: FitSpec = work.config
    codec = work.inputs.get("mask_codec")
    paths = StagePaths(
        data=tuple(at for role, at in sorted(work.places.items()) if role.startswith("data/")),
        init=work.places.get("init"),
        tokenizer=str(work.inputs["tokenizer"] / files.TOKENIZER),
        mask_codec=str(codec / files.MASK_CODEC) if codec else None,
        scratch=str(work.scratch),
        out=str(work.out),
        put=work.put,
    )
    steps, loss = 0, float("nan")
    for item in fit(spec.model, spec.train, paths, Seeds.of(work.seed or 0)):
        steps, loss = item.done, item.loss
        yield item
    work.counts.update(steps=steps, loss=round(loss, 4))
    work.content = (work.out / files.DIGEST).read_text().strip()


CHECKPOINT = Kind(name="checkpoint", make=make, libraries=("pillow", "sentencepiece"))
