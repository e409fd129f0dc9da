"""`auto` among a study's budgets: what it holds back, and where that comes from."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from model.router.config import RouterConfig
from pipelines.sources.slicing import parse_slice

AUTO = "auto"
"""Stands among `budgets` for the one chosen per input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Budgets chosen per input, among those of the study that a method serves.

    Attributes:
      held_back: part of every transfer's training split that its checkpoints are not trained on,
        and their routers are [percent].
      router: how a router learns and chooses.
    """

    held_back: Annotated[int, Field(ge=1, le=50)] = 20
    router: RouterConfig = RouterConfig()


def with_auto(values: Any) -> Any:
    """Returns a study's plain values, with `auto` taken out of `budgets` and made a field."""
    if not isinstance(values, Mapping):
        return values
    budgets = values.get("budgets")
    if not isinstance(budgets, list | tuple) or AUTO not in budgets:
        return values
    given = values.get("auto")
    kept = [budget for budget in budgets if budget != AUTO]
    return {**values, "budgets": kept, "auto": {} if given is None else given}


def parted(split: str, held_back: int) -> tuple[str, str]:
    """Returns a split's part for training and the part held back: the end of each of "a+b".

    By the order of the ids' hashes, as parts of splits are.

    Args:
      split: of the transfer: "train", "train+val", "train[:98%]".
      held_back: part of the whole split [percent].

    Raises:
      ValueError: if a part is not in percent of a split, or smaller than what is held back.
    """
    kept, held = [], []
    for one in split.split("+"):
        part = parse_slice(one)
        bounds = [bound or default for bound, default in ((part.start, "0%"), (part.stop, "100%"))]
        if not all(bound.endswith("%") and not bound.startswith("-") for bound in bounds):
            raise ValueError(
                f"train_split must be a whole split, or a part in percent from its beginning, "
                f"where a budget is {AUTO}, got {split}; state train[:90%], say."
            )
        start, stop = (int(bound[:-1]) for bound in bounds)
        cut = stop - held_back
        if cut <= start:
            raise ValueError(
                f"auto.held_back must leave some of {one} to train on, got {held_back} percent."
            )
        begin = f"{start}%" if start else ""
        end = f"{stop}%" if stop < 100 else ""
        kept.append(f"{part.split}[{begin}:{cut}%]")
        held.append(f"{part.split}[{cut}%:{end}]")
    return "+".join(kept), "+".join(held)
