"""Writes charts and questions in ChartQA's published layout."""

import json
from collections.abc import Callable
from pathlib import Path

from pipelines.synthetic.chart_drawing import draw_chart
from pipelines.synthetic.charts import augmented_questions, human_questions, make_chart
from pipelines.synthetic.config import CorpusConfig, rng_for, split_items
from pipelines.synthetic.encode import png_bytes

SPLITS = {"train": 0.7, "val": 0.1, "test": 0.2}


def write_charts(config: CorpusConfig, root: Path, on_item: Callable[[], None]) -> None:
    """Writes `{split}/{split}_{human,augmented}.json` and `{split}/png/` under `root`.

    The questions without a picture are the last ones of the training split.
    """
    # Indices past `num_charts` are defects: a question whose picture is never written.
    for split, indices in split_items(config.num_charts, SPLITS).items():
        (root / split / "png").mkdir(parents=True)
        rows: dict[str, list[dict[str, str]]] = {"human": [], "augmented": []}
        # Only training has defects: evaluation splits keep the numbers that are asked for.
        num_defects = config.count_defects(2) if split == "train" else 0
        for index in [*indices, *range(config.num_charts, config.num_charts + num_defects)]:
            rng = rng_for(config.seed, "chart", index)
            chart = make_chart(rng)
            name = f"{index:06d}.png"
            questions_of = {"human": human_questions(chart, rng)}
            if index < config.num_charts:
                questions_of["augmented"] = augmented_questions(chart, rng)
                (root / split / "png" / name).write_bytes(png_bytes(draw_chart(chart)))
                on_item()
            else:
                # One question, so that each defect is one broken input.
                questions_of["human"] = questions_of["human"][:1]
            for kind, questions in questions_of.items():
                rows[kind] += [
                    {"imgname": name, "query": query, "label": label} for query, label in questions
                ]
        for kind, questions in rows.items():
            text = json.dumps(questions, ensure_ascii=False, indent=1)
            (root / split / f"{split}_{kind}.json").write_text(text, encoding="utf-8")
