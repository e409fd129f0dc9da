"""`parcel check-connector`: checks a connector's promises at the sizes of a study."""

from collections.abc import Iterator

from flows.config.load import load
from flows.config.references import connector_reference
from infra.errors import ConfigError
from model.connector.contract import PromiseCheck, check_promises


def check_user_connector(name: str, config: str | None) -> Iterator[PromiseCheck]:
    """Yields a finding for each promise of a connector.

    Args:
      name: a connector of the registry, or one of the user's own as a config names it.
      config: a study's YAML file, which gives the model and the connector's settings; None takes
        the demo.

    Raises:
      ConfigError: if there is no such connector, or it does not fit the model's sizes.
    """
    study = load(config)
    try:
        model = study.model_of(connector_reference("NAME", name))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    yield from check_promises(model)
