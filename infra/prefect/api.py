"""A client of the Prefect server that the user named, for commands that need one."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings

from infra.errors import ConfigError

T = TypeVar("T")

_PAGE = 200
"""Objects in one answer of Prefect's API, the most that it gives."""


def read_all(read: Callable[..., list[T]], **filters: Any) -> Iterator[T]:
    """Yields all objects that a reading method of Prefect's client gives, page by page.

    Args:
      read: the method, such as `client.read_flow_runs`.
      **filters: its arguments, without `limit` and `offset`.
    """
    for offset in range(0, 10_000_000, _PAGE):
        page = read(**filters, limit=_PAGE, offset=offset)
        yield from page
        if len(page) < _PAGE:
            return


@contextlib.contextmanager
def named_server() -> Iterator[SyncPrefectClient]:
    """Yields a client of the server that `PREFECT_API_URL`, or the user's profile, names.

    Raises:
      ConfigError: if none is named, or it does not answer, or asks for a password.
    """
    url = get_current_settings().api.url
    if not url:
        raise ConfigError(
            "PREFECT_API_URL must be the API of a Prefect server, such as "
            "http://HOST:4200/api; it is not set."
        )
    with get_client(sync_client=True) as client:
        try:
            client.hello()
            client.request("POST", "/work_pools/filter", json={"limit": 1})
        except PrefectHTTPStatusError as error:
            if error.response.status_code not in (401, 403):
                raise
            raise ConfigError(
                f"PREFECT_API_AUTH_STRING must be the name:password that {url} asks for; it said "
                f"{error.response.status_code}."
            ) from None
        except httpx.HTTPError as error:
            raise ConfigError(
                f"PREFECT_API_URL must be the API of a Prefect server that runs, got {url}: "
                f"{str(error) or type(error).__name__}."
            ) from None
        yield client
