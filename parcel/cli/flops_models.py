"""The models of `parcel model flops`: those of a study or a checkpoint, with each connector."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from flows.config.references import connector_reference
from flows.config.user_checkpoint import checkpoint_config
from flows.study.load import load
from infra.errors import ConfigError
from model.analysis import flops
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.connector.registry import KINDS
from model.files import CONFIG
from model.presets import paligemma2_3b


def flops_models(
    config: str | None, image_px: int | None, user_connectors: Sequence[str] = ()
) -> dict[str, list[ModelConfig]]:
    """Returns each model of a study, once with each connector that its sizes allow.

    Args:
      config: a study's YAML file or a checkpoint's folder; None is PaliGemma 2 3B.
      image_px: side of the input instead of the model's own [pixels]; at the side of a study's
        Stage 2, the settings are those of Stage 2.
      user_connectors: connectors of the user's own, beside those of the study or the checkpoint.

    Returns:
      Name of the backbone, "" where there is one only -> its models.

    Raises:
      ConfigError: if `config` is neither, the size does not fit the model, or there is no such
        connector.
    """
    try:
        more = [connector_reference("--connector", name) for name in user_connectors]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    try:
        if config is None or (Path(config) / CONFIG).is_file():
            model = checkpoint_config(Path(config)) if config else paligemma2_3b()
            kinds = [*more, model.connector.kind]
            return {"": _with_connectors(model, image_px, {}, kinds)}
        models = {}
        for study in load(config).backbone_studies:
            views = {view.model.vision.image_px: view for view in study.resolutions}
            view = views.get(image_px or 0, study)
            kinds = [*more, *map(view.connector_of, view.methods)]
            models[view.backbone] = _with_connectors(view.model, image_px, view.connectors, kinds)
        return models
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{config or '--image-px'}: {error}") from None


def _with_connectors(
    model: ModelConfig,
    image_px: int | None,
    settings: Mapping[str, ConnectorConfig],
    kinds: Iterable[str],
) -> list[ModelConfig]:
    """Returns a model with each connector of ours, and with each of the other `kinds`."""
    if image_px is not None and image_px != model.vision.image_px:
        vision = dataclasses.replace(model.vision, image_px=image_px)
        model = dataclasses.replace(model, vision=vision)
        # Buckets are declared for one side; kept at another, they would rule out connectors.
        settings = {kind: dataclasses.replace(c, buckets=()) for kind, c in settings.items()}
    # Ours are there anyway; each other one once.
    others = [kind for kind in dict.fromkeys(kinds) if kind not in KINDS]
    return list(flops.with_connectors(model, settings, others))
