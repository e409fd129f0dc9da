"""Budgets chosen per input: trains a router head on a frozen checkpoint, and applies it."""

import json
import typing
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from infra.progress import Progress
from model import vlm
from model.checkpoint.folder import stated_digest
from model.connector import budgets as served
from model.data.loader import stack_rows
from model.data.parts import open_parts, records_by_id
from model.data.pixels import decode_images
from model.data.text import eval_row, train_row
from model.eval.config import EvalConfig
from model.eval.run import (
    Answered,
    Loaded,
    evaluate,
    fill_up,
    grouped,
    load_checkpoint,
    num_images_of,
)
from model.files import PREDICTIONS
from model.masks.tokens import MaskTokens
from model.router.config import RouterConfig
from model.router.features import pooled
from model.router.files import HEAD, LOSSES, NEEDS, ROUTER
from model.router.head import Head, choose, fit, least_enough
from pipelines.records.schema import Record

_losses = jax.jit(vlm.token_losses, static_argnames="structure")


def train_router(
    checkpoint: str,
    *,
    data: str,
    budgets: tuple[int, ...],
    decode: EvalConfig,
    config: RouterConfig,
    out: Path,
) -> Generator[Progress, None, dict[str, float]]:
    """Trains a checkpoint's router head; writes `head.npz`, `router.json` and `losses.jsonl`.

    Args:
      checkpoint: the checkpoint, which stays unchanged.
      data: prepared dataset of the benchmark the checkpoint was trained for, but not trained on.
      budgets: budgets to choose from, ascending; the connector serves all of them [tokens].
      decode: batch size and lengths, as in the evaluation.
      config: config of the router.
      out: existing folder to write to.

    Returns:
      A summary: the number of items, for each budget the share of items for which it is the
      smallest that is enough, and the head's cross-entropy on left-out items together with that of
      a constant prediction [nats].
    """
    loaded = load_checkpoint(checkpoint)
    masks = MaskTokens(loaded.codec)
    features, losses, rows = [], [], []
    for progress, records, seen in _look(loaded, data, decode, budgets[0]):
        masks.prepare(records)
        texts = [
            train_row(loaded.tokenizer, _prefix(r), masks.fill(r, 0), decode.text_len)
            for r in records
        ]
        batch = stack_rows(fill_up(texts, decode.batch_size))
        # `vlm` accepts encoded images in place of images; only the type of `Example` does not.
        images = typing.cast("vlm.Images", seen.images)
        example = vlm.Example(
            images=images,
            text=batch["text"],
            mask_ar=batch["mask_ar"],
            mask_loss=batch["mask_loss"],
        )
        wanted = batch["mask_loss"][:, 1:]
        by_budget = [
            np.asarray(_losses(vlm.structure(loaded.model), loaded.params, example, slots))
            for slots in (_slots(loaded, budget) for budget in budgets)
        ]
        num = wanted.sum(axis=1)
        means = np.stack([loss.sum(axis=1) / np.maximum(num, 1) for loss in by_budget], axis=1)
        # A prefix that fills the row leaves no suffix, and so no loss.
        told = [place for place in range(len(records)) if num[place]]
        features.append(seen.features[told])
        losses.append(means[told])
        kept = [records[place] for place in told]
        rows += [{"id": r.id, "source_sha256": r.source_sha256} for r in kept]
        yield progress
    if not rows:
        raise ValueError(
            f"text_len must leave room for a suffix, got {decode.text_len}: every item's prefix "
            "fills it."
        )
    lost = np.concatenate(losses).astype(np.float64)
    labels = least_enough(lost, config.epsilon)
    known, sources = np.concatenate(features), [row["source_sha256"] for row in rows]
    head = fit(known, labels, sources, budgets)
    head.save(out / HEAD)
    for row, values, label in zip(rows, lost, labels, strict=True):
        row["losses"] = [round(float(value), 6) for value in values]
        row["budget"] = budgets[label]
    rows.sort(key=lambda row: row["id"])
    (out / LOSSES).write_text("".join(f"{json.dumps(row, sort_keys=True)}\n" for row in rows))
    constant = _constant(labels, len(budgets))
    entropies = {"cross_entropy": head.left_out, "constant": constant}
    said = {
        "checkpoint": stated_digest(checkpoint),
        "budgets": list(budgets),
        "epsilon": config.epsilon,
        "threshold": config.threshold,
        "decay": head.decay,
        "num": len(rows),
        **{name: round(value, 6) for name, value in entropies.items()},
    }
    (out / ROUTER).write_text(json.dumps(said, indent=1, sort_keys=True) + "\n")
    shares = {f"least_{b}": round(float((labels == k).mean()), 4) for k, b in enumerate(budgets)}
    return {"num": len(rows), **{k: round(v, 4) for k, v in entropies.items()}, **shares}


def route(
    checkpoint: str,
    *,
    router: Path,
    data: str,
    decode: EvalConfig,
    answers: Mapping[int, Path],
    out: Path,
) -> Generator[Progress, None, dict[str, float]]:
    """Gives each item of a split the checkpoint's answer at the budget chosen for it.

    It writes predictions and score as `evaluate` does, and `needs.jsonl`: for each item the
    probability that each budget is not enough, the chosen budget, and the score at every budget.

    Args:
      checkpoint: the checkpoint that answered.
      router: folder that `train_router` wrote.
      data: the split that was answered.
      decode: config with which it was answered.
      answers: budget -> folder of the predictions at this budget [tokens].
      out: existing folder to write to.

    Returns:
      Mean of the chosen budgets [tokens per image].
    """
    head = Head.load(router / HEAD)
    threshold = json.loads((router / ROUTER).read_text())["threshold"]
    found = {budget: _rows(answers[budget] / PREDICTIONS) for budget in head.budgets}
    loaded = load_checkpoint(checkpoint)
    lines, texts = [], {}
    for progress, records, seen in _look(loaded, data, decode, head.budgets[0]):
        need = head.need(seen.features)
        for record, chances, place in zip(records, need, choose(need, threshold), strict=True):
            budget = head.budgets[place]
            rows = [found[b][record.id] for b in head.budgets]
            texts[record.id] = rows[place]["prediction"]
            lines.append(
                {
                    "id": record.id,
                    "source_sha256": record.source_sha256,
                    "need": [round(float(chance), 6) for chance in chances],
                    "budget": budget,
                    "scores": [row.get("pseudo_value", row["score"]) for row in rows],
                }
            )
        yield progress
    lines.sort(key=lambda line: line["id"])
    (out / NEEDS).write_text("".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines))
    least = head.budgets[0]
    known = Answered(texts={least: texts}, seconds={least: []})
    # All answers are known, so `evaluate` decodes nothing; it only scores and writes them.
    yield from evaluate(checkpoint, data=data, config=decode, out={least: str(out)}, known=[known])
    return {"tokens": round(float(np.mean([line["budget"] for line in lines])), 4)}


class _Seen(typing.NamedTuple):
    images: vlm.Seen
    features: np.ndarray


def _look(
    loaded: Loaded, data: str, decode: EvalConfig, least: int
) -> Iterator[tuple[Progress, Sequence[Record], _Seen]]:
    """Yields a dataset's records in batches, with the features that a budget is chosen by."""
    served.check_budget(loaded.model, least)
    px, structure = loaded.model.vision.image_px, vlm.structure(loaded.model)
    parts = open_parts([data], px)
    total, done = sum(len(part) for part in parts.values()), 0
    for records in grouped(records_by_id(parts), decode):
        filled = fill_up(records, decode.batch_size)
        num_images = num_images_of(filled[0], decode)
        images = np.stack([decode_images(r.window(), num_images, px) for r in filled])
        texts, valid = zip(
            *(eval_row(loaded.tokenizer, _prefix(r), decode.text_len) for r in filled),
            strict=True,
        )
        seen = vlm.see(structure, loaded.params, images)
        prompt = vlm.Prompt(seen, np.stack(texts), np.stack(valid))
        features = pooled(structure, loaded.params, prompt, _slots(loaded, least))
        done += len(records)
        rows = np.asarray(features, np.float64)[: len(records)]
        yield Progress(done=done, total=total), records, _Seen(seen, rows)


def _prefix(record: Record) -> str:
    return record.prefixes_of(0)[0] if record.prefixes else record.prefix


def _slots(loaded: Loaded, budget: int) -> vlm.Slots:
    return vlm.Slots(served.exact_bucket(loaded.model, budget).size, budget)


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return {row["id"]: row for row in map(json.loads, lines)}


def _constant(labels: np.ndarray, num: int) -> float:
    """Returns the cross-entropy of a constant prediction: the rate at which each cut is passed."""
    share = np.clip([(labels > k).mean() for k in range(num - 1)], 1e-12, 1 - 1e-12)
    return float(-(share * np.log(share) + (1 - share) * np.log(1 - share)).sum())
