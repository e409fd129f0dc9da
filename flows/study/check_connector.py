"""`parcel check-connector`: checks a connector's promises at the sizes of a study."""

from collections.abc import Iterator

from flows.config.families import with_pair
from flows.config.load import load
from flows.config.references import connector_reference
from infra.errors import ConfigError
from model.checkpoint.torch_connector import compare, torch_class
from model.connector.contract import PromiseCheck, check_promises


def check_user_connector(
    name: str,
    config: str | None,
    vision: str | None = None,
    text: str | None = None,
    torch: str | None = None,
) -> Iterator[PromiseCheck]:
    """Yields a finding for each promise of a connector, and one for its author's torch class.

    Args:
      name: a connector of the registry, or one of the user's own as a config names it.
      config: a study's YAML file, which gives the model and the connector's settings; None takes
        the demo.
      vision: family or published size of another tower; None takes the study's.
      text: that of another decoder.
      torch: the torch class, as file.py:Class or module:Class; None compares none.

    Raises:
      ConfigError: if there is no such connector, class, tower or decoder, or they do not fit
        together, or no Python has torch.
    """
    study = load(config)
    try:
        author = None if torch is None else torch_class(torch)
        model = with_pair(study.model_of(connector_reference("NAME", name)), vision, text)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if author is not None:
        # First, so that a Python without torch shows before the promises are computed.
        try:
            yield compare(model, author)
        except ValueError as error:
            raise ConfigError(str(error)) from None
    yield from check_promises(model)
