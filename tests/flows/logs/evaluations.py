"""Writes logs in the format of Every Eval Ever, as other systems' converters do."""

import json
from collections.abc import Sequence
from pathlib import Path


def write_evaluation(
    root: Path,
    model: str,
    scores: Sequence[float],
    *,
    metric: str = "match",
    texts: Sequence[str] = (),
    prompts: Sequence[str] = (),
    ids: Sequence[str] = (),
    targets: Sequence[Sequence[str]] = (),
    answers: Sequence[str | list[str]] = (),
    per_picture: int = 1,
) -> Path:
    """Writes one model's items of the task `charts`; returns the file of the evaluation.

    Args:
      texts: questions alone; none for "How many? 0", "How many? 1" and so on.
      prompts: what the model was given; none for the questions.
      ids: ids of the items; none for their numbers.
      targets: accepted answers of each item; none for "4" alone.
      answers: the model's answers; none for the scores.
      per_picture: questions about each picture.
    """
    result = {
        "evaluation_result_id": "1",
        "evaluation_name": "charts",
        "source_data": {"dataset_name": "charts", "hf_split": "test"},
        "metric_config": {"metric_id": metric},
        "score_details": {"score": sum(scores) / len(scores)},
    }
    evaluation = {
        "evaluation_id": f"charts/{model}",
        "eval_library": {"name": "inspect_ai"},
        "model_info": {"id": model},
        "evaluation_results": [result],
    }
    rows = []
    for number, score in enumerate(scores):
        answer = answers[number] if answers else f"{score:g}"
        text = texts[number] if texts else f"How many? {number}"
        given = {"formatted": prompts[number]} if prompts else {}
        row = {
            "evaluation_id": f"charts/{model}",
            "sample_id": ids[number] if ids else str(number),
            "input": {"raw": text, "reference": targets[number] if targets else ["4"], **given},
            "output": {"raw": answer if isinstance(answer, list) else [answer]},
            "evaluation": {"score": score},
            "metadata": {"image_id": number // per_picture},
        }
        rows.append(json.dumps(row))
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{model}_samples.jsonl").write_text("".join(f"{row}\n" for row in rows))
    path = root / f"{model}.json"
    path.write_text(json.dumps(evaluation))
    return path
