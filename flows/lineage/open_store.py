"""Opens the store that a person names."""

from infra.errors import ConfigError
from infra.store.store import Store


def open_store(uri: str) -> Store:
    """Returns the store at a URI.

    Raises:
      ConfigError: if no store can be opened at `uri`.
    """
    try:
        return Store(uri)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--store: {error}") from None
