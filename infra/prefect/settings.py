"""Prefect's settings for a store: its database is kept in the store's folder."""

import contextlib
import importlib
import os
from pathlib import Path

from infra.errors import ConfigError, one_line_message


def apply(store: Path, *, quiet: bool = True) -> None:
    """Sets Prefect's environment variables that the user has not set; import Prefect afterwards.

    Profiles that the user has elsewhere do not count: one could name Prefect Cloud, say, and a run
    would report there. A server, its password and its key are named in variables.

    Args:
      store: the store's folder on this machine.
      quiet: keep Prefect's own log lines off the terminal (they still reach its server).
    """
    defaults = {
        # The server is ours, see `infra.prefect.server`: Prefect starts none of its own.
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "DO_NOT_TRACK": "1",
        # By default a minute, six times: a run would wait at its end for a server that is stopped.
        # What could not be reported is settled later, from the run's journal.
        "PREFECT_API_REQUEST_TIMEOUT": "15",
        "PREFECT_CLIENT_MAX_RETRIES": "1",
    }
    if quiet:
        defaults["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
        defaults["PREFECT_LOGGING_INTERNAL_LEVEL"] = "CRITICAL"
        defaults["PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW"] = "ignore"
    os.environ["PREFECT_HOME"] = str((store / "prefect").absolute())
    os.environ.pop("PREFECT_PROFILE", None)
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def import_prefect() -> None:
    """Imports Prefect, with the settings of variables and of `PREFECT_HOME` alone.

    It reads them once, on import, and would take those in the current folder, too (.env,
    prefect.toml, pyproject.toml): another project's, or a broken file, by which no command worked.
    """
    # This folder has no such file.
    with contextlib.chdir(Path(__file__).parent):
        importlib.import_module("prefect.context")


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
