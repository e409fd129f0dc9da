"""Loads configs of checkpoints whose connector is a user's class, with the code that made them."""

from pathlib import Path

from flows.steps.user_code import has_user_code, install_user_code
from infra.errors import ConfigError
from infra.store.store import Store
from model.checkpoint.config_json import connector_kind
from model.checkpoint.folder import load_config
from model.config import ModelConfig
from model.connector.registry import KINDS, routing_of
from model.files import CONFIG


def checkpoint_config(folder: Path, artifact: str = "", store: str = "") -> ModelConfig:
    """Returns the configuration of a checkpoint, once the class of its connector is loaded.

    Args:
      folder: folder of the checkpoint.
      artifact: the beginning of its key, if it is an artifact: the class is then loaded from the
        source tree that made it, which the store keeps.
      store: store of the artifact.

    Raises:
      ConfigError: if the class is not found, or this process has loaded another version of it.
    """
    kind = connector_kind(folder / CONFIG)
    if kind not in KINDS:
        # An artifact brings the code that made it; a folder has to find it on Python's path.
        if artifact and not Path(artifact).is_dir():
            opened = Store(store)
            if source := opened.resolve(artifact).manifest.source:
                tree = opened.open_source(source)
                install_user_code(tree)
                # Python keeps the first module of a name, so another version cannot be loaded
                # beside it.
                if not has_user_code(tree):
                    raise ConfigError(
                        f"checkpoint {artifact} was made with another version of {kind} than a "
                        f"checkpoint before it; one command takes one version."
                    )
        try:
            routing_of(kind)
        except ValueError as error:
            raise ConfigError(
                f"checkpoint {artifact or folder} has the connector {kind}: {error}; an artifact "
                f"that is named by its key brings its code from the store."
            ) from None
    return load_config(folder)
