"""The trackers that a run is shown in beside its own pages, each of which is an extra of ours."""

import importlib.util
from collections.abc import Iterable
from typing import Literal

Tracker = Literal["mlflow", "wandb"]
"""A tracker's name; it is also that of the extra which installs it, and of its package."""


def missing_tracker(tracker: str) -> str:
    """Returns how to install a tracker; "" if it is installed."""
    # W&B writes into a folder `wandb`, which is found as a package, too, but has no file.
    spec = importlib.util.find_spec(tracker)
    if spec and spec.origin:
        return ""
    return f"pip install 'parcel-pipeline[{tracker}]'"


def describe_missing_trackers(trackers: Iterable[Tracker]) -> str:
    """Returns a line on the first tracker of a study that is not installed; "" without any."""
    for tracker in trackers:
        if cure := missing_tracker(tracker):
            return (
                f"track must name trackers that are installed, got {tracker}; install it with "
                f"{cure}, or leave it out."
            )
    return ""
