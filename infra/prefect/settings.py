"""Prefect's settings for a store: its database is kept in the store's folder."""

import contextlib
import importlib
import os
import sys
from pathlib import Path

from infra.errors import ConfigError, one_line_message
from infra.prefect.owner import prove_owner

_PROXIES = [
    spelling
    for scheme in ("all", "http", "https")
    for spelling in (f"{scheme}_proxy", f"{scheme}_PROXY".upper())
]


SETTINGS = {
    # The server is ours, see `infra.prefect.server`: Prefect starts none of its own.
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    # By default a minute, six times: a run would wait at its end for a server that is stopped.
    # What could not be reported is settled later, from the run's journal.
    "PREFECT_API_REQUEST_TIMEOUT": "15",
    "PREFECT_CLIENT_MAX_RETRIES": "1",
    # Prefect's own log lines stay off the terminal; they still reach its server.
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
}
"""Variable that Prefect reads -> our value; in commands the user's own wins, in servers ours."""


def apply(store: Path) -> None:
    """Sets Prefect's environment variables that the user has not set; import Prefect afterwards.

    Profiles that the user has elsewhere do not count: one could name Prefect Cloud, say, and a run
    would report there. A server, its password and its key are named in variables.

    Args:
      store: the store's folder on this machine.
    """
    os.environ["PREFECT_HOME"] = str((store / "prefect").absolute())
    os.environ.pop("PREFECT_PROFILE", None)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def import_prefect() -> None:
    """Imports Prefect, with the settings of variables and of `PREFECT_HOME` alone.

    It reads them once, on import, and would take those in the current folder, too (.env,
    prefect.toml, pyproject.toml): another project's, or a broken file, by which no command worked.
    """
    drop_unusable_proxies()
    prove_owner()
    # This folder has no such file.
    with contextlib.chdir(Path(__file__).parent):
        importlib.import_module("prefect.context")


def drop_unusable_proxies() -> None:
    """Takes proxies out of the environment that Prefect's client, httpx, cannot use, with a line.

    It makes a connection to each of them before it has an address to call, and so it would fail on
    the way to a server on loopback, too, which needs none. The other clients here, of buckets and
    of Python itself, pass over such proxies.
    """
    for name in _PROXIES:
        url = os.environ.get(name)
        if not url:
            continue
        import httpx

        try:
            httpx.HTTPTransport(proxy=url if "://" in url else f"http://{url}").close()
        except (ImportError, ValueError, httpx.InvalidURL):
            del os.environ[name]
            kind = url.partition("://")[0] if "://" in url else "an invalid address"
            print(
                f"parcel: {name} is left out, since Prefect's client knows no proxy of its kind, "
                f"{kind}; pip install 'httpx[socks]' adds SOCKS 5.",
                file=sys.stderr,
            )


def check_current_folder() -> None:
    """Raises a `ConfigError` if Prefect cannot read the settings in the current folder.

    Each run that its runner starts is a process of Prefect's own, which reads them.
    """
    from prefect.settings import Settings

    try:
        Settings()
    except ValueError as error:  # No TOML, or a wrong value.
        raise ConfigError(
            f"runs that are started from the pages read Prefect's settings in {Path.cwd()} (.env, "
            f"prefect.toml, pyproject.toml), which are wrong: {one_line_message(error)}; "
            f"mend them, or start from another folder."
        ) from None
