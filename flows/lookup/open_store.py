"""Opens the store that a person names."""

from infra.errors import ConfigError
from infra.store.store import Store


def open_store(uri: str, *, make: bool = True) -> Store:
    """Returns the store at a URI.

    Args:
      uri: the store.
      make: whether it is made where there is none; else it reads as an empty one.

    Raises:
      ConfigError: if no store can be opened at `uri`.
    """
    try:
        return Store(uri, make=make)
    except (ValueError, OSError) as error:
        raise ConfigError(f"--store: {error}") from None


def open_existing_store(uri: str) -> Store:
    """Returns the store at a URI, for commands that only read it or change what it has.

    Raises:
      ConfigError: if there is none, or it cannot be opened.
    """
    store = open_store(uri, make=False)
    if not store.is_there:
        raise ConfigError(
            f"--store: there is no store at {store.uri}: name the one that you mean, by --store or "
            f"PARCEL_STORE; `parcel run` makes one."
        )
    return store
