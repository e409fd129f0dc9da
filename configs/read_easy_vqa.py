"""Reads easy-VQA as its package ships it: drawn shapes, and questions about shape and colour."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read(folder: Path, split: str) -> Iterator[dict[str, Any]]:
    """Yields a row per question; `{split}/questions.json` lists [question, answer, image]."""
    for question, answer, image in json.loads((folder / split / "questions.json").read_text()):
        picture = f"{split}/images/{image}.png"
        yield {"image": picture, "question": question, "answers": [answer]}
