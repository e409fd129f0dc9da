"""A router: it predicts, for each input, the least budget that a frozen checkpoint needs."""

import dataclasses
from collections.abc import Iterator

from flows.steps.kind import Kind, Work
from infra.progress import Progress
from infra.store.digest import UNLESS_DEFAULT
from model.eval.config import EvalConfig
from model.router.config import RouterConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterSpec:
    """The router of one checkpoint.

    Attributes:
      budgets: budgets to choose from, ascending [tokens per image].
      decode: decoding settings of the answers that it learns from.
      router: settings of its training and of its choice.
      connector: "module:Class" of the checkpoint's connector if it is the user's own; else "".
    """

    budgets: tuple[int, ...]
    decode: EvalConfig
    router: RouterConfig = RouterConfig()
    connector: str = dataclasses.field(default="", metadata=UNLESS_DEFAULT)


def make(work: Work) -> Iterator[Progress]:
    """Trains the router of the input `checkpoint` on `data` that the checkpoint has not seen."""
    from model.eval.routed import train_router

    spec: RouterSpec = work.config
    work.counts.update(
        (
            yield from train_router(
                work.places["checkpoint"],
                data=work.places["data"],
                budgets=spec.budgets,
                decode=spec.decode,
                config=spec.router,
                out=work.out,
            )
        )
    )


ROUTER = Kind(
    name="router",
    make=make,
    libraries=("pillow", "sentencepiece", "scipy"),
    functions=lambda spec: [spec["decode"]["metric"], spec.get("connector", "")],
)
