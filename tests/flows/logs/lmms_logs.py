"""Writes logs in the layout of lmms-eval's own."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def write_logs(
    root: Path,
    model: str,
    scores: list[float],
    *,
    metric: str = "relaxed",
    split: str = "test",
    prompt: str = "How many?",
    per_picture: int = 0,
    mean: float | None = None,
    task: str = "chartqa",
    answers: Sequence[Any] = (),
    change: Callable[[dict[str, Any]], None] | None = None,
) -> Path:
    """Writes the two files of a run, as lmms-eval does; pictures are what a user may add.

    Args:
      answers: what the filter left of each answer; none for "4é".
      change: changes the results before they are written.
    """
    folder = root / model.replace("/", "__")
    folder.mkdir(parents=True, exist_ok=True)
    mean = sum(scores) / len(scores) if mean is None else mean
    results = {
        "results": {task: {"alias": task, f"{metric},none": mean, f"{metric}_stderr,none": 0.01}},
        "configs": {task: {"task": task, "test_split": split}},
        "model_name": model,
    }
    if change:
        change(results)
    (folder / "20261127_101500_results.json").write_text(json.dumps(results))
    with (folder / f"20261127_101500_samples_{task}.jsonl").open("w") as file:
        for number, score in enumerate(scores):
            row = {
                "doc_id": number,
                "target": "4",
                "filtered_resps": [answers[number] if answers else "4\u00e9"],
                "doc_hash": f"{number:064x}",
                metric: score,
                "input": prompt.format(number),
            }
            if per_picture:
                row["doc"] = {"image_id": number // per_picture}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return folder


def change_rows(folder: Path, change: Callable[[int, dict[str, Any]], None]) -> None:
    """Changes the rows of a log, each with its number."""
    (path,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        change(number, row)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def state_all(results: dict[str, Any]) -> None:
    """Adds what lmms-eval 0.7 states of a run of ChartQA, of which these are all questions."""
    (task,) = results["results"]
    results["configs"][task] |= {
        "dataset_path": "lmms-lab/ChartQA",
        "dataset_kwargs": {"token": True},
        "full_docs": False,
        "doc_to_text": "<function chartqa_doc_to_text at 0x7f3bd1c8a0e0>",
        "description": "",
        "num_fewshot": 0,
        "metric_list": [
            {"metric": "relaxed", "aggregation": "mean", "higher_is_better": True},
            {"metric": "exact", "aggregation": "mean", "higher_is_better": True},
        ],
        "generation_kwargs": {"max_new_tokens": 16, "temperature": 0, "until": ["\n\n"]},
        "filter_list": [{"name": "none", "filter": [{"function": "take_first"}]}],
        "metadata": [{"version": 0.0}],
    }
    results |= {
        "versions": {task: "Yaml"},
        "n-shot": {task: 0},
        "higher_is_better": {task: {"relaxed": True, "exact": True}},
        "n-samples": {task: {"original": 3, "effective": 3}},
        "config": {
            "model": "qwen_vl",
            "model_args": f"pretrained={results['model_name']}",
            "batch_size": 1,
            "limit": None,
            "gen_kwargs": None,
            "fewshot_seed": 1234,
        },
        "lmms_eval_version": "0.7.3",
    }
