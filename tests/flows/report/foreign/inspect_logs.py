"""Writes logs in the layout of inspect_ai's own."""

import json
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

_LETTERS = {1.0: "C", 0.5: "P", 0.0: "I"}


def inspect_log(
    model: str,
    scores: Sequence[Sequence[float]],
    *,
    task: str = "charts",
    scorer: str = "match",
    prompt: str = "How many?",
    target: str | list[str] = "4",
    per_picture: int = 1,
    ids: Sequence[str | int] = (),
    mean: float | None = None,
    split: str = "test",
) -> dict[str, Any]:
    """Returns a log of one JSON text; `scores` has the epochs of each sample."""
    samples = []
    for number, epochs in enumerate(scores):
        for epoch, score in enumerate(epochs, start=1):
            question = {"type": "text", "text": f"{prompt} {number}"}
            picture = {"type": "image", "image": f"attachment://{number // per_picture:032x}"}
            user = {"id": f"m{number}", "content": [question, picture], "role": "user"}
            model_turn = {"content": "4", "source": "generate", "role": "assistant"}
            samples.append(
                {
                    "id": ids[number] if ids else number + 1,
                    "epoch": epoch,
                    "input": [user],
                    "target": target,
                    "messages": [user, model_turn],
                    "output": {"completion": f" {score} "},
                    "scores": {scorer: {"value": _LETTERS[score], "answer": f"{score}"}},
                    "metadata": {},
                    "attachments": {f"{number // per_picture:032x}": "data:image/png;base64,iVBO"},
                }
            )
    values = [score for epochs in scores for score in epochs]
    mean = sum(values) / len(values) if mean is None else mean
    metrics = {
        "accuracy": {"name": "accuracy", "value": mean},
        "stderr": {"name": "stderr", "value": 0.0123},
    }
    return {
        "version": 2,
        "status": "success",
        "eval": {
            "task": task,
            "task_args": {"split": split},
            "dataset": {"name": task, "samples": len(scores)},
            "model": model,
        },
        "results": {"scores": [{"name": scorer, "scorer": scorer, "metrics": metrics}]},
        "samples": samples,
    }


def write_json(path: Path, log: Mapping[str, Any]) -> Path:
    """Writes a log as one JSON text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(log, indent=2), encoding="utf-8")
    return path


def write_archive(path: Path, log: Mapping[str, Any], *, method: int = 93) -> Path:
    """Writes a log as an archive whose members are compressed by a method.

    93 is Zstandard, which Python writes from version 3.14 on only: its members are stored, and the
    archive's headers are changed to say so. Of others, the bytes are Deflate's.
    """
    header = {name: value for name, value in log.items() if name != "samples"}
    members = {"_journal/start.json": b"{}"}
    for sample in log["samples"]:
        name = f"samples/{sample['id']}_epoch_{sample['epoch']}.json"
        members[name] = json.dumps(sample).encode()
    members["header.json"] = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    if method == zipfile.ZIP_DEFLATED:
        with zipfile.ZipFile(path, "w", method) as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return path
    codec = pa.Codec("zstd")
    body, index = bytearray(), bytearray()
    for name, data in members.items():
        packed = codec.compress(data, asbytes=True)
        sizes = (zlib.crc32(data), len(packed), len(data), len(name), 0)
        # Version, flags, method, time and date: the fields that both headers begin with.
        shared = (20, 0, method, 0, 0x21, *sizes)
        index += struct.pack("<4sH5H3L2H3H2L", b"PK\1\2", 20, *shared, 0, 0, 0, 0, len(body))
        index += name.encode()
        body += struct.pack("<4s5H3L2H", b"PK\3\4", *shared) + name.encode() + packed
    num = len(members)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, num, num, len(index), len(body), 0)
    path.write_bytes(bytes(body + index + end))
    return path
