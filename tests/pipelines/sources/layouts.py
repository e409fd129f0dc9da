"""Every writer of a small benchmark, by the folder it writes."""

from collections.abc import Callable
from pathlib import Path

from tests.pipelines.sources import (
    caption_layouts,
    document_layouts,
    question_layouts,
    video_layouts,
)

WRITERS: dict[str, Callable[[Path], None]] = {
    name.removeprefix("write_"): writer
    for family in (caption_layouts, document_layouts, question_layouts, video_layouts)
    for name, writer in vars(family).items()
    if name.startswith("write_")
}
