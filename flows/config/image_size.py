"""Images are prepared at the size that the model reads, so that none is resized twice."""

from collections.abc import Mapping, Sequence
from typing import Any

from flows.config.benchmark import TransferConfig
from flows.config.source import SourceConfig
from pipelines.prepare.config import PrepareConfig


def with_image_px(values: Any) -> Any:
    """Returns a study's plain values with the model's `image_px` wherever `prepare` leaves it out.

    This fills in the study's `prepare` and those of its sources, transfers and `watch`.
    """
    px: Any = values
    for key in ("model", "vision", "image_px"):
        px = px.get(key) if isinstance(px, Mapping) else None
    if not isinstance(px, int):
        return values  # The default, or an error that pydantic reports.
    return with_prepared_px({"prepare": {}, **values}, px)


def with_prepared_px(values: Mapping[str, Any], px: int) -> dict[str, Any]:
    """Returns plain values with `image_px=px` in every `prepare` that leaves it out [pixels]."""

    def filled(owner: Any) -> Any:
        if not isinstance(owner, Mapping) or not isinstance(owner.get("prepare"), Mapping):
            return owner
        return {**owner, "prepare": {"image_px": px, **owner["prepare"]}}

    found = filled(dict(values))
    if isinstance(found.get("sources"), list | tuple):
        found["sources"] = [filled(source) for source in found["sources"]]
    if isinstance(found.get("watch"), Mapping):
        found["watch"] = with_prepared_px(found["watch"], px)
    if isinstance(found.get("transfers"), Mapping):
        found["transfers"] = {k: filled(v) for k, v in found["transfers"].items()}
    return found


def check_image_px(
    image_px: int,
    prepare: PrepareConfig,
    sources: Sequence[SourceConfig],
    transfers: Mapping[str, TransferConfig],
) -> None:
    """Refuses settings that prepare images at another size than the model's `image_px` [pixels].

    Raises:
      ValueError: naming the field, the sizes and the cure.
    """
    stated: dict[str, PrepareConfig | None] = {"prepare": prepare}
    stated |= {f"sources.{i}.prepare": source.prepare for i, source in enumerate(sources)}
    stated |= {f"transfers.{name}.prepare": entry.prepare for name, entry in transfers.items()}
    for field, own in stated.items():
        if own is not None and own.image_px != image_px:
            raise ValueError(
                f"{field}.image_px must be model.vision.image_px={image_px}, got {own.image_px}; "
                f"leave it out to use the model's size."
            )
