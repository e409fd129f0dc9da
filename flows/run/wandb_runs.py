"""Writes runs to Weights & Biases, where `WANDB_*` say, into the project `parcel`."""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

import wandb  # pyright: ignore[reportMissingImports]

from flows.run.tracked_run import TrackedRun


class WandbRuns:
    """The runs of one project. Without `WANDB_PROJECT` it is `parcel`.

    Args:
      notes: folder for notes of the stages that were written.
    """

    def __init__(self, notes: Path) -> None:
        # Of this process, which only passes on, W&B needs no code, load or output.
        self._settings = wandb.Settings(
            project=os.environ.get("WANDB_PROJECT", "parcel"),
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_save_requirements=False,
        )
        login = wandb.setup().settings
        place = [login.base_url, login.entity, self._settings.project, login.mode, login.wandb_dir]
        digest = hashlib.sha256("\n".join(map(str, place)).encode()).hexdigest()
        self._notes = notes / f"wandb-{digest[:16]}"
        self._folder = Path(login.wandb_dir)

    def write(self, run: TrackedRun) -> str:
        """Writes a run, or what is missing of it; returns W&B's id of it, which is ours."""
        # The note is this project's own: a server could be asked, but without one there are only
        # folders, which `wandb sync --clean` deletes.
        note = self._notes / run.id
        if run.type == "stage" and note.exists():
            return run.id
        # Without a server each start is a folder, and all of them would be sent in the end: what
        # was written of this run before, and perhaps cut off, goes.
        for folder in self._folder.glob(f"offline-run-*-{run.id}"):
            shutil.rmtree(folder)
        facts: dict[str, Any] = {"page": run.page, "outcome": run.outcome, **run.facts}
        with wandb.init(
            id=run.id,
            name=run.name,
            resume="allow",
            job_type=run.type,
            notes=run.note,
            config={**run.config, "parcel": facts},
            allow_val_change=True,
            settings=self._settings,
        ) as tracked:
            # A server knows up to which step it has a run that was cut off.
            begin = tracked.step
            for point in run.curves:
                if point.step >= begin:
                    tracked.log(dict(point.values), step=point.step)
            tracked.summary.update(dict(run.scores))
            for name, table in run.tables.items():
                rows = [list(row) for row in table.rows]
                tracked.log({name: wandb.Table(columns=list(table.columns), data=rows)})
            tracked.finish(0 if run.outcome in ("complete", "with holes") else 1)
        # W&B's own process writes its file as it ends, some time after `finish`.
        wandb.teardown()
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        return run.id
