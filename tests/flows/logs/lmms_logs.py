"""Writes logs in the layout of lmms-eval's own."""

import json
from pathlib import Path


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
) -> Path:
    """Writes the two files of a run, as lmms-eval does; pictures are what a user may add."""
    folder = root / model.replace("/", "__")
    folder.mkdir(parents=True)
    mean = sum(scores) / len(scores) if mean is None else mean
    results = {
        "results": {
            "chartqa": {"alias": "chartqa", f"{metric},none": mean, f"{metric}_stderr,none": 0.01}
        },
        "configs": {"chartqa": {"task": "chartqa", "test_split": split}},
        "model_name": model,
    }
    (folder / "20261127_101500_results.json").write_text(json.dumps(results))
    with (folder / "20261127_101500_samples_chartqa.jsonl").open("w") as file:
        for number, score in enumerate(scores):
            row = {
                "doc_id": number,
                "target": "4",
                "filtered_resps": ["4\u00e9"],
                "doc_hash": f"{number:064x}",
                metric: score,
                "input": prompt.format(number),
            }
            if per_picture:
                row["doc"] = {"image_id": number // per_picture}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return folder
