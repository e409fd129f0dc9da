"""Scores a file of predictions, and formats the scores."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from infra.errors import ConfigError
from model.eval.metrics.registry import get_metric
from model.eval.scorer import PredictionScores, Scorer


@dataclasses.dataclass(frozen=True)
class ScoredFile:
    """The scores of a file, with the metric's name and the ids of the lines."""

    metric: str
    ids: tuple[str, ...]
    scores: PredictionScores


def score_file(metric: str, path: Path, mask_codec: Path | None = None) -> ScoredFile:
    """Scores a file of predictions, one JSON object a line.

    Args:
      metric: a metric of the registry, or a function as "module:name".
      path: the file of predictions [path].
      mask_codec: codec for metrics that read masks, or a checkpoint that has one [path].

    Raises:
      ConfigError: naming the line, the field, its value and what is accepted.
    """
    codec = _load_codec(metric, mask_codec)
    scorer = Scorer(metric)
    line_of_id: dict[str, int] = {}
    # Lines have the numbers that an editor shows: empty ones are counted, and hold no prediction.
    for number, text in enumerate(_read_predictions(path).split("\n"), start=1):
        if not text.strip():
            continue
        location = f"{path} line {number}"
        fields = _parse_prediction(text, location, masks=get_metric(metric).reads_masks)
        # The line on which this id came first; this line, if it is new.
        first = line_of_id.setdefault(fields["id"], number)
        if first != number:
            clash = f"{fields['id']!r} again, as on line {first}; drop one of them"
            raise ConfigError(f"{location}: id must be unique, got {clash}.")
        # Scored line by line, so that an error names its line. A metric that reads the whole corpus
        # (CIDEr) takes the fields here and computes scores in `finish`.
        try:
            scorer.add(fields["prediction"], {**fields, **codec})
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{location}: {error}") from None
    if not scorer.num:
        raise ConfigError(f"{path} must have at least one line, got none; one line per prediction.")
    return ScoredFile(metric, tuple(line_of_id), scorer.finish())


def as_text(scored_file: ScoredFile) -> str:
    """Returns a line per item, then the score and its parts."""
    result = scored_file.scores.result
    items = zip(scored_file.ids, scored_file.scores.items, strict=True)
    lines = [f"{name}\t{item.score:.6g}" for name, item in items]
    total = result.total
    lines.append(f"{scored_file.metric}\t{total.score:.4f}\tnum {total.num}")
    lines += [f"  {name}\t{p.score:.4f}\tnum {p.num}" for name, p in result.parts.items()]
    return "\n".join(lines) + "\n"


def as_json(scored_file: ScoredFile) -> str:
    """Returns the object of `score.json`, with the items: id, score and other measures."""
    items = [
        {"id": name, "score": item.score, **({"also": dict(item.also)} if item.also else {})}
        for name, item in zip(scored_file.ids, scored_file.scores.items, strict=True)
    ]
    result = scored_file.scores.result.as_json(scored_file.metric)
    return json.dumps({**result, "items": items}, ensure_ascii=False) + "\n"


def _read_predictions(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # Programs on Windows put a mark at its beginning.
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(
            f"FILE must be a readable JSON-lines file, got {path}: {reason}."
        ) from None


def _parse_prediction(text: str, location: str, *, masks: bool) -> dict[str, Any]:
    """Returns the fields of a line, its id and masks as text."""
    try:
        row = json.loads(text)  # Other programs write NaN in fields that nobody reads here.
        if "\\ud" in text.lower():  # Half of a surrogate pair could not be written again.
            json.dumps(row, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{location}: must be one JSON object, got {_shorten_prediction_value(text)}."
        ) from None
    if not isinstance(row, dict):
        raise ConfigError(
            f'{location}: must be an object {{"id": ...}}, got {_shorten_prediction_value(row)}.'
        )
    # Python counts `true` as an integer, so booleans are refused explicitly.
    name, prediction = row.get("id"), row.get("prediction")
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise ConfigError(
            f"{location}: id must be a text or a whole number, got "
            f"{_shorten_prediction_value(name)}."
        )
    if not isinstance(prediction, str):
        accepted = 'a text, "" where there is none'
        raise ConfigError(
            f"{location}: prediction must be {accepted}, got "
            f"{_shorten_prediction_value(prediction)}."
        )
    fields = {**row, "id": str(name)}
    # A mask metric compares with pixels: it reads no answers.
    if masks:
        return {**fields, "masks": _parse_masks(row, location), "box": _parse_box(row, location)}
    answers = row.get("answers")
    if not isinstance(answers, list) or not all(isinstance(a, str) for a in answers) or not answers:
        accepted = "a list of at least one text"
        raise ConfigError(
            f"{location}: answers must be {accepted}, got {_shorten_prediction_value(answers)}."
        )
    return fields


def _parse_masks(row: dict[str, Any], location: str) -> list[str]:
    masks = row.get("masks")
    if not isinstance(masks, list) or not all(
        isinstance(m, dict) and {"size", "counts"} <= set(m) for m in masks
    ):
        accepted = 'a list of one COCO mask {"size": [height, width], "counts": ...}'
        raise ConfigError(
            f"{location}: masks must be {accepted}, got {_shorten_prediction_value(masks)}."
        )
    return [json.dumps(mask) for mask in masks]


def _parse_box(row: dict[str, Any], location: str) -> list[float] | None:
    box = row.get("box")
    if box is None:
        return None
    if not isinstance(box, list) or [isinstance(x, int | float) for x in box] != [True] * 4:
        accepted = "[ymin, xmin, ymax, xmax] as fractions"
        raise ConfigError(
            f"{location}: box must be {accepted}, got {_shorten_prediction_value(box)}."
        )
    return box


def _shorten_prediction_value(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _load_codec(metric: str, path: Path | None) -> dict[str, Any]:
    """Returns the field that a mask metric needs in addition to those of a line: its decoder."""
    # A decoder is needed exactly where masks are read. One that would be ignored is refused: it
    # would look as if it had changed the scores.
    if not get_metric(metric).reads_masks:
        if path is not None:
            raise ConfigError(f"--mask-codec must be left out for {metric}, got {path}.")
        return {}
    if path is None:
        raise ConfigError(
            f"--mask-codec must be given for {metric}: a codec's .npz or a checkpoint."
        )
    from model.checkpoint.folder import mask_codec_path  # Which import JAX.
    from model.masks.codec import MaskCodec

    codec_path = mask_codec_path(str(path)) if path.is_dir() else str(path)
    if not codec_path or not Path(codec_path).is_file():
        raise ConfigError(
            f"--mask-codec must be a codec's .npz or a checkpoint with one, got {path}."
        )
    return {"decode_mask": MaskCodec.load(codec_path).decode}
