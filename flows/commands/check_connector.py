"""A connector's promises, tried at the sizes of a study: `parcel check-connector`."""

from collections.abc import Iterator

from flows.study.load import ConfigError, load
from flows.study.own import connector_named
from model.connector.contract import Finding
from model.connector.contract import check as check_promises


def check(name: str, config: str | None) -> Iterator[Finding]:
    """Yields whether a connector keeps each promise.

    Args:
      name: of the registry, or as a config names one of one's own.
      config: a study's YAML file, whose model and settings of the connector count; None is the
        demo.

    Raises:
      ConfigError: if there is no such connector, or it does not fit the model's sizes.
    """
    study = load(config)
    try:
        model = study.model_of(connector_named("NAME", name))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    yield from check_promises(model)
