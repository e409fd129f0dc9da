"""Images are prepared at the size the model reads: neither enlarged nor reduced twice."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.study.config import StudyConfig


def with_image_px(values: Any) -> Any:
    """Returns a study's plain values with the model's `image_px` wherever `prepare` leaves it out.

    Every `prepare` counts: the study's, a source's own and a transfer's own.
    """
    px: Any = values
    for key in ("model", "vision", "image_px"):
        px = px.get(key) if isinstance(px, Mapping) else None
    if not isinstance(px, int):
        return values  # The default, or an error that pydantic reports.

    def filled(owner: Any) -> Any:
        if not isinstance(owner, Mapping) or not isinstance(owner.get("prepare"), Mapping):
            return owner
        return {**owner, "prepare": {"image_px": px, **owner["prepare"]}}

    values = filled({"prepare": {}, **values})
    if isinstance(values.get("sources"), list | tuple):
        values["sources"] = [filled(source) for source in values["sources"]]
    if isinstance(values.get("transfers"), Mapping):
        values["transfers"] = {k: filled(v) for k, v in values["transfers"].items()}
    return values


def check_image_px(config: "StudyConfig") -> None:
    """Refuses settings that prepare images at another size than the model's.

    Raises:
      ValueError: naming the field, the sizes and the cure.
    """
    for field, stated in _stated(config):
        if stated != (px := config.model.vision.image_px):
            raise ValueError(
                f"{field}.image_px must be model.vision.image_px={px}, got {stated}; leave it out "
                f"to have it so."
            )


def _stated(config: "StudyConfig") -> Iterator[tuple[str, int]]:
    yield "prepare", config.prepare.image_px
    for i, source in enumerate(config.sources):
        if source.prepare:
            yield f"sources.{i}.prepare", source.prepare.image_px
    for name, transfer in config.transfers.items():
        if transfer.prepare:
            yield f"transfers.{name}.prepare", transfer.prepare.image_px
