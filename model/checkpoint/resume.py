"""Progress of a training stage on local disk: whole checkpoints, or none."""

from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

_KEPT = 2


class ResumePoints:
    """Orbax checkpoints of a training state by step; a half-written one is never picked."""

    def __init__(self, scratch: str | Path) -> None:
        options = ocp.CheckpointManagerOptions(
            max_to_keep=_KEPT, create=True, enable_async_checkpointing=False
        )
        self._manager = ocp.CheckpointManager(Path(scratch).absolute() / "resume", options=options)

    def save(self, step: int, state: Any) -> None:
        """Writes the state as it is after `step` updates."""
        self._manager.save(step, args=ocp.args.StandardSave(state))

    def restore(self, template: Any) -> tuple[int, Any] | None:
        """Returns (updates done, state) of the newest whole checkpoint, or None if there is none.

        Args:
          template: a state of the same tree, shapes, types and shardings.
        """
        step = self._manager.latest_step()
        if step is None:
            return None
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, template)
        return step, self._manager.restore(step, args=ocp.args.StandardRestore(abstract))

    def close(self) -> None:
        """Waits for what is being written."""
        self._manager.close()
