"""`parcel flops`: finds the model of a study or a checkpoint, and each connector that fits it."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from flows.config.load import load
from flows.config.references import connector_reference
from flows.config.user_checkpoint import checkpoint_config
from infra.errors import ConfigError
from model.analysis import flops
from model.config import ModelConfig
from model.connector.registry import KINDS
from model.files import CONFIG
from model.presets import paligemma2_3b


def flops_models(
    config: str | None, image_px: int | None, user_connectors: Sequence[str] = ()
) -> list[ModelConfig]:
    """Returns a model once with each connector that its sizes allow.

    Args:
      config: a study's YAML file or a checkpoint's folder; None is PaliGemma 2 3B.
      image_px: side of the input instead of the model's own [pixels]; at the side of a study's
        Stage 2, the settings are those of Stage 2.
      user_connectors: connectors of the user's own, beside those of the study or the checkpoint.

    Raises:
      ConfigError: if `config` is neither, the size does not fit the model, or there is no such
        connector.
    """
    try:
        more = [connector_reference("--connector", name) for name in user_connectors]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        model, settings = paligemma2_3b(), {}
        # Every connector of ours is tried in any case; a checkpoint adds its own, a study those of
        # its methods.
        if config is not None and (Path(config) / CONFIG).is_file():
            model = checkpoint_config(Path(config))
            more.append(model.connector.kind)
        elif config is not None:
            views = {view.model.vision.image_px: view for view in load(config).resolutions}
            study = views.get(image_px or 0, next(iter(views.values())))
            model, settings = study.model, study.connectors
            more += map(study.connector_of, study.methods)
        if image_px is not None and image_px != model.vision.image_px:
            vision = dataclasses.replace(model.vision, image_px=image_px)
            model = dataclasses.replace(model, vision=vision)
            # Buckets are declared for one side; kept at another, they would rule out connectors.
            settings = {kind: dataclasses.replace(c, buckets=()) for kind, c in settings.items()}
        # Ours are there anyway; each other one once.
        more = [kind for kind in dict.fromkeys(more) if kind not in KINDS]
        return list(flops.with_connectors(model, settings, more))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{config or '--image-px'}: {error}") from None
