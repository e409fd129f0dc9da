"""A router: what says, for each input, the least budget that is enough for a frozen checkpoint."""

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
      budgets: to choose from, ascending [tokens per image].
      decode: batches and lengths of what it learns from.
      router: how it learns and chooses.
      connector: of the checkpoint, if it is one's own: "module:Class".
    """

    budgets: tuple[int, ...]
    decode: EvalConfig
    router: RouterConfig = RouterConfig()
    connector: str = dataclasses.field(default="", metadata=UNLESS_DEFAULT)


def make(work: Work) -> Iterator[Progress]:
    """Trains the router of the input `checkpoint` on the input `data`, which it has not seen."""
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
