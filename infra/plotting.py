"""Matplotlib, whatever backend the environment names."""

import contextlib
import os
from types import ModuleType

from infra.user_folders import temporary_folder, user_folder


def import_matplotlib() -> ModuleType:
    """Returns Matplotlib; a backend in `MPLBACKEND` counts only where it is installed.

    We draw on canvases of our own, without a backend. But Jupyter names its own there, which every
    process that it starts inherits, and Matplotlib cannot be imported where that is missing.
    """
    # Without a home it would draw a folder for its list of fonts in each process, with a warning.
    if "MPLCONFIGDIR" not in os.environ and user_folder("XDG_CONFIG_HOME", ".config") is None:
        os.environ["MPLCONFIGDIR"] = str(temporary_folder("matplotlib"))
    named = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if named is not None:
            os.environ["MPLBACKEND"] = named
    # As its import would have done; a user who has chosen another one meanwhile keeps it.
    if named and matplotlib.get_backend(auto_select=False) is None:
        with contextlib.suppress(ValueError):
            matplotlib.rcParams["backend"] = named
    return matplotlib
