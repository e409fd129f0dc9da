"""Writes scores with their items in the format of Every Eval Ever, for its tools and its datastore.

    data/BENCHMARK/ORGANIZATION/MODEL/UUID.json             a score: model, metric, interval, origin
    data/BENCHMARK/ORGANIZATION/MODEL/UUID_samples.jsonl    a line per item: question and answer

There is one pair of files for each benchmark, method, budget and seed. Scores and the ends of their
interval are in 0-1, as the items' scores are. Names and times come from the artifacts, so the same
scores give the same bytes.

Source: Every Eval Ever 0.3.0 (github.com/evaleval/every_eval_ever, eval.schema.json and
instance_level_eval.schema.json).
"""

import datetime
import hashlib
import json
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.report.cells_file import training_interval
from flows.report.items import is_percentage
from flows.report.items_reader import ItemsReader
from flows.report.items_table import ScoreArtifacts, is_right
from flows.report.spread import LEVEL
from infra.errors import ConfigError
from infra.store.births import with_births
from infra.store.digest import file_sha256
from model.decode.config import DecodeConfig
from model.eval.score_json import read_score
from model.files import SCORE

SCHEMA_VERSION = "0.3.0"
"""Version of the schemas that is written."""

LIBRARY = "parcel"
"""Name of the evaluation library: of logs that have it, `flows.logs.every_eval_ever` knows more."""

SAMPLES_END = "_samples.jsonl"
"""End of the name of a file of items; that of its score ends with .json instead."""

_UNBOUNDED = "Infinity"
"""Largest score of a metric that has none."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED = re.compile(r"(data|con|prn|aux|nul|(com|lpt)\d)(\..*)?", re.IGNORECASE)
"""Names that the format's folders must not have."""


def write_evaluations(
    scores: Iterable[ScoreArtifacts], out: Path, *, study: str, organization: str
) -> int:
    """Writes the files of some scores, and returns the number of scores.

    Args:
      scores: the scores.
      out: folder to write to; created if it does not exist.
      study: name of the study.
      organization: who made the models, as in the names of the Hub.

    Raises:
      ConfigError: if the organization is no name of a folder.
      OSError: if a file cannot be written.
    """
    if not _NAME.fullmatch(organization) or _portable_folder_name(organization) != organization:
        raise ConfigError(
            f"--organization must be letters, digits, dots, dashes and _, and no reserved name "
            f"such as data, got {organization!r}."
        )
    num = 0
    for score in scores:
        model = f"{organization}/{study}-{score.cell.method}"
        _write_evaluation(score, out, model, study, organization)
        num += 1
    return num


def _write_evaluation(
    score: ScoreArtifacts, out: Path, model: str, study: str, organization: str
) -> None:
    folder = Path(
        "data",
        _portable_folder_name(score.cell.benchmark),
        *map(_portable_folder_name, model.split("/")),
    )
    # Version 4 is what the format asks for; the digits are those of the key's digest.
    name = uuid.UUID(bytes=hashlib.sha256(score.scores.key.encode()).digest()[:16], version=4)
    made = datetime.datetime.fromisoformat(score.scores.started).timestamp()
    evaluation_id = f"{score.cell.benchmark}/{model}/{made}/{score.scores.key}"
    result_id = f"{evaluation_id}#{score.metric}"

    # The items first, since the score's file has the digest of theirs.
    (out / folder).mkdir(parents=True, exist_ok=True)
    samples = folder / f"{name}{SAMPLES_END}"
    num = 0
    with (out / samples).open("w", encoding="ascii", newline="\n") as file:
        for sample in _evaluation_samples(score):
            of_evaluation = {
                "schema_version": SCHEMA_VERSION,
                "evaluation_id": evaluation_id,
                "model_id": model,
                "evaluation_name": score.cell.benchmark,
                "evaluation_result_id": result_id,
            }
            # Only ASCII: readers that split lines as `str.splitlines` does would cut an answer at
            # a Unicode line separator.
            file.write(json.dumps(of_evaluation | sample, allow_nan=False) + "\n")
            num += 1
    git = score.scores.environment.get("git") or {}
    evaluation = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": evaluation_id,
        "evaluation_timestamp": score.predictions.started,
        "retrieved_timestamp": str(made),
        "source_metadata": {
            "source_name": study,
            "source_type": "evaluation_run",
            "source_organization_name": organization,
            "evaluator_relationship": "first_party",
        },
        "eval_library": {
            "name": LIBRARY,
            "version": git.get("commit") or git.get("version") or "unknown",
            "additional_details": {"code_sha256": score.scores.code, "scores": score.scores.key},
        },
        "model_info": {
            "name": score.cell.method,
            "id": model,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "unknown",
                "seed": str(score.cell.seed),
                "pretraining": str(score.pretraining),
                "checkpoint": score.checkpoint.key,
                "checkpoint_sha256": score.checkpoint.content,
            },
        },
        "evaluation_results": [_evaluation_result(score, result_id)],
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": samples.as_posix(),
            "hash_algorithm": "sha256",
            "checksum": file_sha256(out / samples),
            "total_rows": num,
        },
    }
    text = json.dumps(evaluation, indent=1, allow_nan=False) + "\n"
    (out / folder / f"{name}.json").write_text(text, encoding="ascii")


def _evaluation_result(score: ScoreArtifacts, result_id: str) -> dict[str, Any]:
    metrics = read_score(score.folder / SCORE)
    items, _ = ItemsReader().of_scores(score.folder, metrics["score"])
    # As with intervals, a metric's bounds are not believed where a score has left them.
    bounded = is_percentage(score.metric) and 0 <= metrics["score"] <= 100
    interval = training_interval(metrics["score"], items, score.metric)
    details: dict[str, Any] = {"score": metrics["score"] / 100}
    if interval.low is not None and interval.high is not None:
        details["uncertainty"] = {
            "confidence_interval": {
                "lower": interval.low / 100,
                "upper": interval.high / 100,
                "confidence_level": 1 - LEVEL,
                "method": "over the sources of the items, of this training alone",
            },
            "num_samples": metrics["num"],
        }
    config = score.data.config if isinstance(score.data.config, Mapping) else {}
    return {
        "evaluation_result_id": result_id,
        "evaluation_name": score.cell.benchmark,
        "source_data": {
            "dataset_name": score.cell.benchmark,
            "source_type": "other",
            "additional_details": {
                "split": str(config.get("split", "")),
                "data": score.data.key,
                "data_sha256": score.data.content,
            },
        },
        "evaluation_timestamp": score.predictions.started,
        "metric_config": {
            "metric_id": score.metric,
            "metric_name": score.metric,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0.0 if metrics["score"] >= 0 else f"-{_UNBOUNDED}",
            "max_score": 1.0 if bounded else _UNBOUNDED,
        },
        "score_details": details,
        "generation_config": _generation_config_of_score(score),
    }


def _generation_config_of_score(score: ScoreArtifacts) -> dict[str, Any]:
    decode = with_births(DecodeConfig, score.predictions.config["decode"])
    decoding = decode.get("decoding") or {}
    sampling = {name: decoding[name] for name in ("temperature", "top_p") if name in decoding}
    others = {"beams": decoding.get("beams"), "text_len": decode.get("text_len")}
    return {
        "generation_args": sampling,
        "additional_details": {
            "budget": str(score.cell.budget),
            **{name: str(value) for name, value in others.items() if value is not None},
        },
    }


def _evaluation_samples(score: ScoreArtifacts) -> Iterator[dict[str, Any]]:
    for row in score.table().to_pylist():
        # Predictions of earlier versions may lack a prompt, answers or a source.
        prompt, answers = row["prompt"] or "", row["answers"] or []
        metadata = {name: row[name] for name in ("source", "source_sha256") if row[name]}
        if row["pseudo_value"] is not None:
            metadata["pseudo_value"] = repr(row["pseudo_value"])
        question = prompt + "".join(answers)
        yield {
            "sample_id": row["id"],
            "sample_hash": hashlib.sha256(question.encode()).hexdigest(),
            "interaction_type": "single_turn",
            "input": {"raw": prompt, "reference": answers},
            "output": {"raw": [row["prediction"]]},
            "answer_attribution": [
                {
                    "turn_idx": 0,
                    "source": "output.raw",
                    "extracted_value": row["prediction"],
                    "extraction_method": "whole answer",
                    "is_terminal": True,
                }
            ],
            "evaluation": {"score": row["score"], "is_correct": is_right(row["score"])},
            "metadata": metadata,
        }


def _portable_folder_name(name: str) -> str:
    """Returns a name as a folder may have it; the files have the name itself."""
    portable = re.sub(r"[^A-Za-z0-9._-]", "_", name).rstrip(".")
    return f"{portable}_" if _RESERVED.fullmatch(portable) else portable
