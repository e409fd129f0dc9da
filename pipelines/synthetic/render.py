"""Renders a whole corpus: each data set in the folder of its published layout."""

from collections.abc import Callable
from pathlib import Path

from pipelines.synthetic.chartqa import write_charts
from pipelines.synthetic.config import CORPORA, CorpusConfig
from pipelines.synthetic.msvdqa import write_videos
from pipelines.synthetic.refcoco import write_scenes
from pipelines.synthetic.web import write_web

FOLDERS = {
    "web": "web",
    "charts": "chartqa/ChartQA Dataset",
    "scenes": "refcoco",
    "videos": "msvd_qa",
}
_WRITERS = {
    "web": write_web,
    "charts": write_charts,
    "scenes": write_scenes,
    "videos": write_videos,
}


def render_corpus(
    config: CorpusConfig,
    out: str,
    on_progress: Callable[[int, int, str], None] | None = None,
) -> None:
    """Renders the corpus that `config` describes; the same config gives the same bytes.

    Args:
      config: numbers, sizes and seed of the corpus.
      out: absent or empty folder [path].
      on_progress: called after each item with (items done, all items, set being rendered: "web",
        "charts", "scenes" or "videos").

    Raises:
      ValueError: if `out` is not empty.
    """
    root = Path(out)
    if root.exists() and any(root.iterdir()):
        raise ValueError(f"out must be an empty or absent folder, got {out}; choose another.")
    # Sets are drawn in a fixed order; each item has its own generator, so the order does not matter
    # to the bytes.
    num_done = 0
    for corpus in CORPORA:
        if getattr(config, f"num_{corpus}") == 0:
            continue

        def on_item(corpus: str = corpus) -> None:
            nonlocal num_done
            num_done += 1
            if on_progress is not None:
                on_progress(num_done, config.num_items, corpus)

        _WRITERS[corpus](config, root / FOLDERS[corpus], on_item)
