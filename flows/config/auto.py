"""Config of `auto`, a budget chosen for each input, and of the data held back to train it."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from model.router.config import RouterConfig
from pipelines.sources.slicing import parse_slice

AUTO = "auto"
"""Value among `budgets` that stands for a budget chosen per input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AutoConfig:
    """Settings for choosing a budget per input, among the study's budgets that a method serves.

    Attributes:
      held_back: part of every transfer's training split on which routers are trained instead of
        checkpoints [percent].
      router: settings of the routers, which learn to choose.
    """

    held_back: Annotated[int, Field(ge=1, le=50)] = 20
    router: RouterConfig = RouterConfig()


def with_auto(values: Any) -> Any:
    """Returns a study's plain values with "auto" moved from `budgets` to the field `auto`."""
    if not isinstance(values, Mapping):
        return values
    budgets = values.get("budgets")
    if not isinstance(budgets, list | tuple) or AUTO not in budgets:
        return values
    given = values.get("auto")
    kept = [budget for budget in budgets if budget != AUTO]
    return {**values, "budgets": kept, "auto": {} if given is None else given}


def parted(split: str, held_back: int) -> tuple[str, str]:
    """Returns the slices of a training split to train on and to hold back.

    The end of every "+" part is held back, in the order that slices have: that of the ids' hashes.

    Args:
      split: training split of the transfer: "train", "train+val", "train[:98%]".
      held_back: part of each whole split to hold back [percent].

    Raises:
      ValueError: if a slice is not given in percent, or is no larger than what is held back.
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
