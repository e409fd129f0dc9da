"""Reads the logs of inspect_ai, without its library.

    DATE_TASK_ID.json    one object: eval (model, task), results (means), samples
    DATE_TASK_ID.eval    the same as an archive, see `inspect_archive`

Source: inspect_ai, src/inspect_ai/log/_log.py (`EvalLog`), _condense.py (attachments),
scorer/_metric.py (`value_to_float`).
"""

import dataclasses
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.report.foreign.inspect_archive import read_archive
from flows.report.foreign.item_log import ItemLog, ItemLogError, LoggedItem
from flows.report.foreign.log_checks import (
    MAX_BYTES,
    is_number,
    metric_of_means,
    object_member,
    parse_object,
    picture_of,
    sorted_items,
)

FILES = "*.eval, or *.json"
"""What is read, for a message."""

_START = re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"status"\s*:')
"""How a log that is one JSON text begins, and other JSON does not."""

_ATTACHMENT = "attachment://"
_REMOVED = "<base64-data-removed>"
"""Stands for a picture in a log that was made without pictures."""

_VALUES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_WORDS = {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}


def find_logs(folder: Path) -> list[Path]:
    """Returns the logs below a folder, in order of path; other JSON is left out."""
    texts = (path for path in folder.rglob("*.json") if _is_log(path))
    return sorted([*folder.rglob("*.eval"), *texts])


def read_log(path: Path) -> ItemLog:
    """Returns the items of one model on one task.

    The metric is the first score in the log's results that has a number in 0-1 for every sample
    whose mean is a metric's value there. A sample's score is its mean over the epochs. The prompt
    is the text of all messages before the model's first one; items that ask about the same picture
    share their source.

    Raises:
      ItemLogError: if the log did not end well, lacks what is read, is damaged or too large, or no
        score can be read sample by sample.
    """
    archive = path.suffix == ".eval"
    header, samples = read_archive(path) if archive else _read_text(path)
    if header.get("status") != "success" or header.get("invalidated"):
        state = "an invalidated log" if header.get("invalidated") else repr(header.get("status"))
        raise ItemLogError(
            f"{path}: status must be 'success', got {state:.60}; leave it out, or run "
            f"`inspect eval-retry` on it."
        )
    spec = object_member(header, "eval", path)
    names = {name: spec.get(name) for name in ("model", "task")}
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise ItemLogError(f"{path}: eval.{name} must be a text, got {value!r:.60}.")

    # An item per sample; its epochs are answers to the same question.
    epochs: dict[str, list[_Sample]] = {}
    for place, sample in samples:
        if "id" not in sample:
            raise ItemLogError(f"{place}: id is missing.")
        epochs.setdefault(str(sample["id"]), []).append(_Sample.of(sample, place))
    if not epochs:
        raise ItemLogError(f"{path}: has no sample; run it again without `--no-log-samples`.")
    numbers = [sorted(entry.epoch for entry in entries) for entries in epochs.values()]
    if any(each != numbers[0] or len(set(each)) < len(each) for each in numbers):
        raise ItemLogError(f"{path}: every sample must have the same epochs, each once.")

    scorer_of = dict(_scorers(header, path))
    metric = metric_of_means(
        _means(header, path),
        lambda name: [_mean_score(each, name, scorer_of[name]) for each in epochs.values()],
        path,
    )
    args = spec.get("task_args")
    return ItemLog(
        file=str(path),
        model=str(names["model"]),
        task=str(names["task"]),
        metric=metric,
        split=str(args.get("split") or "") if isinstance(args, dict) else "",
        items=sorted_items(
            (
                (entries[0].place, _logged_item(name, entries, metric, scorer_of[metric]))
                for name, entries in epochs.items()
            ),
            "id",
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Sample:
    """What is kept of a sample: its pictures, which are most of it, are not."""

    place: str
    epoch: int
    source: str
    text: str
    prompt: str
    target: str
    completion: str
    scores: Mapping[str, Any]

    @classmethod
    def of(cls, sample: Mapping[str, Any], place: str) -> "_Sample":
        attachments = sample.get("attachments")
        attached = attachments if isinstance(attachments, dict) else {}
        text, pictures = _text_and_pictures(sample.get("input"), attached)
        prompt, _ = _text_and_pictures(_before_answer(sample.get("messages")), attached)
        target, output = sample.get("target", ""), sample.get("output")
        metadata, scores = sample.get("metadata"), sample.get("scores")
        epoch = sample.get("epoch", 1)
        return cls(
            place=place,
            epoch=epoch if isinstance(epoch, int) else 1,
            source=picture_of(metadata if isinstance(metadata, dict) else {}) or pictures,
            text=text,
            prompt=prompt or text,
            target="\n".join(map(str, target)) if isinstance(target, list) else str(target),
            completion=str(output.get("completion", "")) if isinstance(output, dict) else "",
            scores=scores if isinstance(scores, dict) else {},
        )

    def score(self, name: str, scorer: str) -> dict[str, Any]:
        """Returns the entry of a score: value, answer, …; of a scorer of several, its own value."""
        entry = self.scores.get(name, self.scores.get(scorer))
        if not isinstance(entry, dict):
            return {}
        value = entry.get("value")
        return entry | {"value": value.get(name)} if isinstance(value, dict) else entry


def _logged_item(name: str, epochs: Sequence[_Sample], metric: str, scorer: str) -> LoggedItem:
    first = min(epochs, key=lambda entry: entry.epoch)
    score = _mean_score(epochs, metric, scorer)
    assert score is not None  # Of the metric that was chosen, every item has one.
    answer = first.score(metric, scorer).get("answer")
    return LoggedItem(
        id=name,
        source=first.source,
        question="",
        prompt=first.prompt,
        target=first.target,
        answer=str(first.completion if answer is None else answer),
        score=score,
        text=first.text,
    )


def _mean_score(epochs: Sequence[_Sample], name: str, scorer: str) -> float | None:
    values = [_number(entry.score(name, scorer).get("value")) for entry in epochs]
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def _number(value: Any) -> float | None:
    """Returns a score's value as a number, by inspect_ai's own rule; None if it is none.

    C, P, I and N are correct, partly correct, incorrect and no answer.
    """
    if is_number(value):
        return float(value)
    if not isinstance(value, str):
        return None
    known = _VALUES.get(value, _WORDS.get(value.lower()))
    try:
        return float(value) if known is None else known
    except ValueError:
        return None


def _entries(header: Mapping[str, Any], path: Path) -> Iterator[dict[str, Any]]:
    scores = object_member(header, "results", path).get("scores")
    for entry in scores if isinstance(scores, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            yield entry


def _scorers(header: Mapping[str, Any], path: Path) -> Iterator[tuple[str, str]]:
    for entry in _entries(header, path):
        yield entry["name"], str(entry.get("scorer"))


def _means(header: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    """Yields the name of each score with the value of each of its metrics, such as accuracy."""
    for entry in _entries(header, path):
        metrics = entry.get("metrics")
        for metric in metrics.values() if isinstance(metrics, dict) else []:
            if isinstance(metric, dict):
                yield entry["name"], metric.get("value")


def _before_answer(messages: Any) -> list[Any]:
    """Returns the messages before the model's first one."""
    before = []
    for message in messages if isinstance(messages, list) else []:
        if isinstance(message, dict) and message.get("source") == "generate":
            break
        before.append(message)
    return before


def _text_and_pictures(messages: Any, attached: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the text of messages, and digests of the pictures and videos in them.

    ```
    [{"role": "user", "content": [{"type": "text", "text": "How many?"},
                                  {"type": "image", "image": "attachment://4f31…"}]}]
    ─▶ "How many?", "4f31…"
    ```
    """
    texts, pictures = [], []
    if isinstance(messages, str):
        messages = [{"content": messages}]
    for message in messages if isinstance(messages, list) else []:
        content = message.get("content") if isinstance(message, dict) else ""
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for part in parts:
            kind = part.get("type") if isinstance(part, dict) else None
            value = str(part.get(str(kind)) or "") if isinstance(part, dict) else ""
            if kind == "text":
                reference = value.removeprefix(_ATTACHMENT)
                is_attached = value.startswith(_ATTACHMENT) and reference in attached
                texts.append(str(attached[reference]) if is_attached else value)
            elif kind in ("image", "video") and value and value != _REMOVED:
                # An attachment's name is a digest of its content; an address may be long, too.
                is_short = value.startswith(_ATTACHMENT)
                digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:32]
                pictures.append(value.removeprefix(_ATTACHMENT) if is_short else digest)
    return "\n".join(texts), " ".join(pictures)


def _is_log(path: Path) -> bool:
    with path.open("rb") as file:
        return _START.match(file.read(200)) is not None


def _read_text(path: Path) -> tuple[dict[str, Any], Iterator[tuple[str, dict[str, Any]]]]:
    if path.stat().st_size > MAX_BYTES:
        raise ItemLogError(
            f"{path}: must be at most {MAX_BYTES} bytes, got {path.stat().st_size}; convert it: "
            f"`inspect log convert {path} --to eval --output-dir DIR`."
        )
    header = parse_object(path.read_bytes(), str(path))
    samples = header.pop("samples", None)
    rows = samples if isinstance(samples, list) else []
    for number, sample in enumerate(rows):
        if not isinstance(sample, dict):
            raise ItemLogError(f"{path}: samples[{number}] must be an object, got {sample!r:.60}.")
    return header, ((f"{path}: samples[{n}]", sample) for n, sample in enumerate(rows))
