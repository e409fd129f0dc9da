"""Writes clips (H.264) and questions in MSVD-QA's published layout."""

import base64
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from pipelines.synthetic.clips import Clip, make_clip
from pipelines.synthetic.config import CorpusConfig, rng_for, split_items
from pipelines.synthetic.encode import write_clip

SPLITS = {"train": 0.65, "val": 0.1, "test": 0.25}


def write_videos(config: CorpusConfig, root: Path, on_item: Callable[[], None]) -> None:
    """Writes `{split}_qa.json`, `youtube_mapping.txt` and `YouTubeClips/` under `root`.

    Videos are numbered from 1. The empty clips have the highest numbers; their questions are in
    the training split.
    """
    # Indices past `num_videos` are defects: questions about a clip of 0 bytes.
    folder = root / "YouTubeClips"
    folder.mkdir(parents=True)
    mapping: list[str] = []
    question_id = 0
    for split, indices in split_items(config.num_videos, SPLITS).items():
        rows = []
        # Only training has defects: evaluation splits keep the numbers that are asked for.
        empty = config.count_defects(1) if split == "train" else 0
        for index in [*indices, *range(config.num_videos, config.num_videos + empty)]:
            clip = make_clip(config, index, rng_for(config.seed, "video", index))
            name = _clip_name(config, index, clip)
            mapping.append(f"{name} vid{index + 1}")
            if index < config.num_videos:
                write_clip(folder / f"{name}.mp4", clip.frames(), fps=config.video_fps)
                on_item()
            else:
                (folder / f"{name}.mp4").touch()
            for question, answer in clip.questions:
                row = {"id": question_id, "video_id": index + 1}
                rows.append({**row, "question": question, "answer": answer})
                question_id += 1
        (root / f"{split}_qa.json").write_text(json.dumps(rows), encoding="utf-8")
    mapping.sort(key=lambda line: int(line.rpartition("vid")[2]))
    (root / "youtube_mapping.txt").write_text("\n".join(mapping) + "\n", encoding="utf-8")


def _clip_name(config: CorpusConfig, index: int, clip: Clip) -> str:
    """Returns `<11 characters>_<start>_<end>`, the form of names of clips cut from other videos."""
    digest = hashlib.sha256(f"{config.seed}/{index}".encode()).digest()
    code = base64.urlsafe_b64encode(digest)[:11].decode()
    start = digest[-1] % 60
    return f"{code}_{start}_{start + math.ceil(clip.num_frames / config.video_fps)}"
