"""Routed: a checkpoint's answers to one split, each at the budget chosen for its item."""

import dataclasses
import json
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from infra.store.digest import UNLESS_DEFAULT
from model import files
from model.eval.config import EvalConfig
from model.router.files import ANSWERS


@dataclasses.dataclass(frozen=True, kw_only=True)
class RoutedSpec:
    """One evaluation at budgets chosen per input.

    Attributes:
      benchmark: the benchmark that it is scored on.
      decode: settings with which its answers were decoded and are scored.
      connector: "module:Class" of the checkpoint's connector if it is the user's own; else "".
    """

    benchmark: str
    decode: EvalConfig
    connector: str = dataclasses.field(default="", metadata=UNLESS_DEFAULT)


def make(work: Work) -> Iterator[Progress]:
    """Takes each item's answer from the input that has the budget chosen for it."""
    from model.eval.routed import route

    spec: RoutedSpec = work.config
    counts = yield from route(
        work.places["checkpoint"],
        router=work.inputs["router"],
        data=work.places["data"],
        decode=spec.decode,
        answers={
            int(role.removeprefix(ANSWERS)): path
            for role, path in work.inputs.items()
            if role.startswith(ANSWERS)
        },
        out=work.out,
    )
    result = json.loads((work.out / files.SCORE).read_text())
    work.counts.update(counts, score=result["score"], num=result["num"])


ROUTED = Kind(
    name="routed",
    make=make,
    libraries=("pillow", "sentencepiece"),
    functions=lambda spec: [spec["decode"]["metric"], spec.get("connector", "")],
)
