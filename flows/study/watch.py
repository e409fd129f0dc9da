"""`parcel watch`: what lives beside a server, and tells it which runs of a store are dead."""

import time
from collections.abc import Callable

from flows.study.load import ConfigError
from infra.prefect.api import NoServerError, named_server
from infra.prefect.published import published
from infra.prefect.rows import settle_ended
from infra.prefect.watch import Watch
from infra.store.store import Store

_LOOK_EVERY = 5.0
"""Between two looks at the runs [s]."""


def watch(store: Store, say: Callable[[str], None]) -> None:
    """Looks after the runs of a store, on the server that `PREFECT_API_URL` names, until ended.

    Args:
      store: where they hold their leases.
      say: gets a line whenever the state of a run is set.

    Raises:
      ConfigError: if no server answers.
    """
    try:
        with named_server() as client:
            say(f"watching runs of {store.uri} at {client.api_url}; end with Ctrl-C")
    except NoServerError as error:
        raise ConfigError(str(error)) from None
    look_forever(store, say)


def look_forever(store: Store, say: Callable[[str], None] = lambda _: None) -> None:
    """Settles every run that was killed, on this machine or elsewhere, for ever."""
    watching = Watch(store)
    while True:
        published(settle_ended, store.state)  # Journals know more than leases: they come first.
        for line in published(watching.look) or []:
            say(line)
        time.sleep(_LOOK_EVERY)
