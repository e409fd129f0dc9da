"""The check that images are prepared at the size that the model reads: none is resized twice."""

from collections.abc import Mapping, Sequence

from flows.config.benchmark import TransferConfig
from flows.config.source import SourceConfig
from pipelines.prepare.config import PrepareConfig


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
    for field, config in stated.items():
        if config is not None and config.image_px != image_px:
            raise ValueError(
                f"{field}.image_px must be model.vision.image_px={image_px}, got "
                f"{config.image_px}; leave it out to use the model's size."
            )
