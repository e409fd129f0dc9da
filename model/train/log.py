"""The log of a stage by step: how well it learns, how fast, and where its time goes."""

import contextlib
import functools
import json
import resource
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from model.analysis.flops import Modality, update_flops
from model.analysis.peak import peak_tflops
from model.config import ModelConfig
from model.connector import budgets
from model.data.loader import Batch
from model.train.config import TrainConfig
from model.train.step import StepMetrics

LOSSES_OF_TIME = ("start", "compile", "input", "save", "watch", "again")
"""Names of the ways in which a stage spends time outside its steps: opening its data and
parameters, compiling, waiting for batches, saving resumable checkpoints, looking at held-out data,
and repeating steps that a kill undid."""


class Lines:
    """A file of JSON lines by step; a resumed stage continues it from its checkpoint on.

    Where there are several processes, only the first writes it.

    Attributes:
      path: path of the file.
      saved_row: last line up to the checkpoint; None if there is none.
      undone_row: last line after the checkpoint, whose step is repeated; None if there is none.
      last_row: last line of this attempt, in every process; empty before the first.

    Args:
      path: path of the file; its folder is created.
      start: number of updates done before.
      saved_text: contents of the file when the state after these updates was saved.
    """

    def __init__(self, path: Path, start: int, saved_text: str = "") -> None:
        self.path = path
        self.saved_row: Mapping[str, Any] | None = None
        self.undone_row: Mapping[str, Any] | None = None
        self.last_row: Mapping[str, Any] = {}
        self._is_written = jax.process_index() == 0
        if not self._is_written:
            return
        remaining_rows = [json.loads(line) for line in saved_text.splitlines()]
        text = path.read_text() if path.exists() else ""
        # A kill may have cut the last line.
        rows = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        undone_rows = [row for row in rows if row["step"] > start]
        self.saved_row = remaining_rows[-1] if remaining_rows else None
        self.undone_row = undone_rows[-1] if undone_rows else None
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written as a new file and renamed: a reader that follows the file, as
        # `flows.steps.events` does, then sees that it starts over.
        new_file = path.with_suffix(".anew")
        new_file.write_text("".join(f"{json.dumps(row)}\n" for row in remaining_rows))
        new_file.replace(path)

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a line, which must have a "step"."""
        self.last_row = row
        if not self._is_written:
            return
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Clock:
    """The time of a stage over all its attempts, and the part of it spent outside steps.

    Attributes:
      lost: time lost to each of `LOSSES_OF_TIME` [s].

    Args:
      lines: log of earlier attempts.
      began: when this attempt began [s, by `time.monotonic`].
    """

    def __init__(self, lines: Lines, began: float) -> None:
        self._began = began
        saved_row, last = lines.saved_row or {}, lines.undone_row or lines.saved_row or {}
        self._earlier_seconds = last.get("seconds", 0.0)
        zeros = dict.fromkeys(LOSSES_OF_TIME, 0.0)
        self.lost = zeros | last.get("lost", {})
        # Steps after the checkpoint are repeated, so the time they took is lost too, except for
        # what was already counted as lost to something else.
        undone_seconds = self._earlier_seconds - saved_row.get("seconds", 0.0)
        unsaved_seconds = sum(self.lost.values()) - sum(saved_row.get("lost", zeros).values())
        self.lost["again"] += max(undone_seconds - unsaved_seconds, 0.0)

    @property
    def seconds(self) -> float:
        """Time since the stage began, without the time between attempts [s]."""
        return self._earlier_seconds + time.monotonic() - self._began

    @contextlib.contextmanager
    def losing(self, to: str) -> Iterator[None]:
        """Counts the time spent inside as lost to one of `LOSSES_OF_TIME`."""
        start = time.monotonic()
        try:
            yield
        finally:
            self.lost[to] += time.monotonic() - start

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields batches; waiting for one counts as lost, though a device may be busy meanwhile."""
        while True:
            with self.losing("input"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Speed:
    """Counts the tokens and FLOPs of steps, from one reading to the next.

    Args:
      model: config of the model that is trained.
      train: the training recipe.
      devices: devices that train it.
      trained: paths of the parameters that are not frozen.
    """

    def __init__(
        self,
        model: ModelConfig,
        train: TrainConfig,
        devices: Sequence[Any],
        trained: Iterable[str],
    ) -> None:
        self._model, self._train = model, train
        self._trained = {path.partition("/")[0] for path in trained}
        self._peak = peak_tflops(devices)
        self._flops_of = functools.lru_cache(maxsize=None)(self._training_update_flops)
        self._since: float | None = None
        self._tokens = self._num_flops = 0.0

    def _training_update_flops(self, bucket: int, num_images: int, text_tokens: int) -> float:
        prompt = Modality(name="", num_images=num_images, text_tokens=text_tokens)
        size, trained = self._train.batch_size, self._trained
        return update_flops(self._model, bucket, prompt, size, trained=trained, with_unread=False)

    def add(self, budget: int, num_images: int, *, packed: bool = False) -> None:
        """Counts a step; where texts are packed, it has fewer places for them."""
        size, text_tokens = self._train.batch_size, self._train.text_len
        if packed:
            text_tokens = self._train.text_places
        bucket = budgets.bucket_of(self._model, budget).size
        self._tokens += size * (num_images * budget + text_tokens)
        self._num_flops += self._flops_of(bucket, num_images, text_tokens)

    def since_last_call(self) -> dict[str, float]:
        """Returns the speed of the steps since the last call; the first call returns nothing.

        The speed is tokens per second and, for devices whose peak is known, the share of the peak
        that the FLOPs of the steps reached (MFU). Counted are the FLOPs that the programs run, in
        all slots of their buckets; recomputed ones do not count, nor does attention's padding where
        texts are packed.
        """
        now, since = time.monotonic(), self._since
        tokens, flops = self._tokens, self._num_flops
        self._since, self._tokens, self._num_flops = now, 0.0, 0.0
        if since is None or now <= since:
            # The first reading has no reading before it to measure from.
            return {}
        speeds = {"tokens_per_second": round(tokens / (now - since), 1)}
        if self._peak is not None:
            speeds["mfu"] = float(f"{flops / (now - since) / (1e12 * self._peak):.4g}")
        return speeds


def row_of(
    step: int, metrics: StepMetrics, learning_rate: float, budget: int, clock: Clock, speed: Speed
) -> dict[str, Any]:
    """Returns the log's line for a step.

    Args:
      step: number of updates done.
      metrics: measurements of the last update.
      learning_rate: learning rate of the last update.
      budget: budget of the last update [tokens].
      clock: clock of the stage.
      speed: speed of the steps since the line before.
    """
    norms = {part: float(norm) for part, norm in metrics.norms.items()}
    # The parts' norms give the norm of the whole gradient: the root of the sum of their squares.
    seconds, lost = clock.seconds, sum(clock.lost.values())
    return {
        "step": step,
        "loss": round(float(metrics.loss), 5),
        "learning_rate": learning_rate,
        "budget": budget,
        "gradient_norm": float(f"{np.sqrt(sum(norm**2 for norm in norms.values())):.5g}"),
        "gradient_norms": {part: float(f"{norm:.5g}") for part, norm in norms.items()},
        **speed.since_last_call(),
        "memory_gb": round(_peak_bytes() / 1e9, 3),
        "seconds": round(seconds, 2),
        "lost": {to: round(took, 2) for to, took in clock.lost.items()},
        "goodput": round(1.0 - min(lost / seconds, 1.0), 4) if seconds else 0.0,
    }


def _peak_bytes() -> int:
    """Returns the most memory used so far on a device of this process, or else by the process."""
    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    if all("peak_bytes_in_use" in each for each in stats):
        return max(each["peak_bytes_in_use"] for each in stats)
    # A CPU does not tell. Linux counts the process's in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def note_of(row: Mapping[str, Any]) -> str:
    """Returns a line of the log as a short note for people who watch the run."""
    parts = [f"loss {row['loss']:.3f}"]
    if "tokens_per_second" in row:
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in row:
        parts.append(f"{row['mfu']:.0%} MFU")
    return ", ".join(parts)
