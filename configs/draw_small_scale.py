"""Draws the data of `configs/small_scale.yaml`: the demo's corpora, and marks that bind a budget.

    python configs/draw_small_scale.py data

A picture of `marks` is a grid of 16 x 16 cells, one per feature of the tower. k of them, at random
places, hold a mark in one of eight colours. A question gives the place of one mark and asks for its
colour:

    prefix  caption <loc0448><loc0704><loc0511><loc0767>     suffix  red
                    ymin     xmin     ymax     xmax

A connector does not know which mark will be asked for, so its tokens have to hold all of them: k
places and colours, some 8 and 3 bits each. Few tokens can hold few marks.
"""

import json
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from pipelines.records.codes import format_box
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.drawing import COLORS
from pipelines.synthetic.render import render_corpus

GRID, CELL = 16, 14
"""Cells of a side, and their side [pixels]."""
NUM_MARKS = (1, 4, 16, 64)
SPLITS = {"train": 1000, **{f"k{num_marks}": 200 for num_marks in NUM_MARKS}}
"""Pictures of each split; in `train` each number of marks is equally often."""
NUM_QUESTIONS = 4
"""Questions about a picture, or as many as it has marks."""
GROUND = 236


def draw_marks(rng: np.random.Generator, num_marks: int) -> tuple[np.ndarray, list]:
    """Returns a picture's pixels, (224, 224, 3) uint8, and row, column and colour of its marks."""
    pixels = np.full((GRID * CELL, GRID * CELL, 3), GROUND, np.uint8)
    marks = []
    for cell in rng.choice(GRID**2, num_marks, replace=False):
        row, column = divmod(int(cell), GRID)
        color = str(rng.choice(list(COLORS)))
        y, x = row * CELL + 1, column * CELL + 1
        pixels[y : y + CELL - 2, x : x + CELL - 2] = COLORS[color]
        marks.append((row, column, color))
    return pixels, marks


def write_marks(root: Path) -> None:
    """Writes `{split}.jsonl` and `{split}/{number}.png` below a folder."""
    for i, (split, num_pictures) in enumerate(SPLITS.items()):
        (root / split).mkdir(parents=True)
        with (root / f"{split}.jsonl").open("w") as rows:
            for number in range(num_pictures):
                num_marks = NUM_MARKS[(number if split == "train" else i - 1) % len(NUM_MARKS)]
                pixels, marks = draw_marks(np.random.default_rng([i, number]), num_marks)
                image = f"{split}/{number}.png"
                Image.fromarray(pixels).save(root / image)
                for row, column, color in marks[:NUM_QUESTIONS]:
                    box = format_box([side / GRID for side in (row, column, row + 1, column + 1)])
                    fields = {"image": image, "prefix": f"caption {box}", "suffix": color}
                    print(json.dumps(fields), file=rows)


if __name__ == "__main__":
    data = Path(sys.argv[1])
    render_corpus(
        CorpusConfig(num_web=1000, num_charts=0, num_scenes=1200, num_videos=0), str(data)
    )
    write_marks(data / "marks")
