"""What a stage tells of itself by step: how well it learns, how fast, and where its time goes."""

import contextlib
import functools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
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
from model.train.step import Told

LOSSES_OF_TIME = ("start", "compile", "input", "save", "watch", "again")
"""What a stage's time goes to beside its steps: opening its data and parameters, compiling,
waiting for batches, saving points to go on from, looking at held-out data, and steps that a kill
undid."""


class Lines:
    """A file of JSON lines by step; a resumed stage goes on where its checkpoint was.

    Of several processes the first one writes it.

    Attributes:
      path: of the file.
      kept: its last line that stays; None if there is none.
      cut: its last line after the checkpoint, whose step is done again; None if there is none.

    Args:
      path: of the file; its folder is made.
      start: updates done before.
      told: what the file held when the state after them was saved.
    """

    def __init__(self, path: Path, start: int, told: str = "") -> None:
        self.path = path
        self.kept: Mapping[str, Any] | None = None
        self.cut: Mapping[str, Any] | None = None
        self._is_written = jax.process_index() == 0
        if not self._is_written:
            return
        kept = [json.loads(line) for line in told.splitlines()]
        lines = path.read_text().splitlines() if path.exists() else []
        # A kill may have cut the last line.
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        undone = [row for row in rows if row["step"] > start]
        self.kept = kept[-1] if kept else None
        self.cut = undone[-1] if undone else None
        path.parent.mkdir(parents=True, exist_ok=True)
        # As another file: who follows it, as `flows.steps.events` does, sees that it begins anew.
        anew = path.with_suffix(".anew")
        anew.write_text("".join(f"{json.dumps(row)}\n" for row in kept))
        anew.replace(path)

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a line; it has a step."""
        if not self._is_written:
            return
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


class Clock:
    """The time of a stage over all attempts at it, and what of it no step was computed in.

    Attributes:
      lost: of `LOSSES_OF_TIME` [s].

    Args:
      lines: of earlier attempts.
      began: when this one began [s, by `time.monotonic`].
    """

    def __init__(self, lines: Lines, began: float) -> None:
        self._began = began
        kept, last = lines.kept or {}, lines.cut or lines.kept or {}
        self._before = last.get("seconds", 0.0)
        none = dict.fromkeys(LOSSES_OF_TIME, 0.0)
        self.lost = none | last.get("lost", {})
        undone = self._before - kept.get("seconds", 0.0)
        told = sum(self.lost.values()) - sum(kept.get("lost", none).values())
        self.lost["again"] += max(undone - told, 0.0)

    @property
    def seconds(self) -> float:
        """Since the stage began, without what lay between attempts [s]."""
        return self._before + time.monotonic() - self._began

    @contextlib.contextmanager
    def losing(self, to: str) -> Iterator[None]:
        """Counts what is done inside as time lost to something."""
        before = time.monotonic()
        try:
            yield
        finally:
            self.lost[to] += time.monotonic() - before

    def waiting(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields batches; waiting for one counts, though a device may still be at work then."""
        while True:
            with self.losing("input"):
                batch = next(batches, None)
            if batch is None:
                return
            yield batch


class Speed:
    """Tokens and FLOPs of steps, between two times that somebody asks.

    Args:
      model: what is trained.
      train: how.
      devices: that train it.
    """

    def __init__(self, model: ModelConfig, train: TrainConfig, devices: Sequence[Any]) -> None:
        self._model, self._train = model, train
        self._peak = peak_tflops(devices)
        self._flops_of = functools.lru_cache(maxsize=None)(self._flops)
        self._since: float | None = None
        self._tokens = self._done = 0.0

    def _flops(self, bucket: int, num_images: int) -> float:
        prompt = Modality(name="", num_images=num_images, text_tokens=self._train.text_len)
        return update_flops(self._model, bucket, prompt, self._train.batch_size)

    def add(self, budget: int, num_images: int) -> None:
        """Counts a step."""
        size = self._train.batch_size
        bucket = budgets.bucket_of(self._model, budget).size
        self._tokens += size * (num_images * budget + self._train.text_len)
        self._done += self._flops_of(bucket, num_images)

    def told(self) -> dict[str, float]:
        """Returns the speed of the steps since the last call; at the first call, nothing.

        Those are tokens per second and, of devices whose peak is known, the share of it that the
        FLOPs of the steps took (MFU), whatever was computed again.
        """
        now, before = time.monotonic(), self._since
        tokens, flops = self._tokens, self._done
        self._since, self._tokens, self._done = now, 0.0, 0.0
        if before is None or now <= before:
            return {}
        found = {"tokens_per_second": round(tokens / (now - before), 1)}
        if self._peak is not None:
            found["mfu"] = float(f"{flops / (now - before) / (1e12 * self._peak):.4g}")
        return found


def row_of(
    step: int, told: Told, learning_rate: float, budget: int, clock: Clock, speed: Speed
) -> dict[str, Any]:
    """Returns the line of a step.

    Args:
      step: updates done.
      told: what the last of them told.
      learning_rate: of that one.
      budget: of that one [tokens].
      clock: of the stage.
      speed: of the steps since the line before.
    """
    norms = {part: float(norm) for part, norm in told.norms.items()}
    seconds, lost = clock.seconds, sum(clock.lost.values())
    return {
        "step": step,
        "loss": round(float(told.loss), 5),
        "learning_rate": learning_rate,
        "budget": budget,
        "gradient_norm": float(f"{np.sqrt(sum(norm**2 for norm in norms.values())):.5g}"),
        "gradient_norms": {part: float(f"{norm:.5g}") for part, norm in norms.items()},
        **speed.told(),
        "seconds": round(seconds, 2),
        "lost": {to: round(took, 2) for to, took in clock.lost.items()},
        "goodput": round(1.0 - min(lost / seconds, 1.0), 4) if seconds else 0.0,
    }


def note_of(row: Mapping[str, Any]) -> str:
    """Returns a line of the log as those read it who wait."""
    parts = [f"loss {row['loss']:.3f}"]
    if "tokens_per_second" in row:
        parts.append(f"{row['tokens_per_second']:,.0f} tokens/s")
    if "mfu" in row:
        parts.append(f"{row['mfu']:.0%} MFU")
    return ", ".join(parts)
