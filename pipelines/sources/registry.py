"""The sources there are, by name.

The only module of the pipelines that knows every reader. A dataset is made by the code that
`pipelines.prepare.run` imports, without this module, and by the one reader that `reader_module`
names: an edit in another reader does not concern it.
"""

from pipelines.sources.captions import coco, multilingual, scicap, screens, textcaps
from pipelines.sources.documents import book_covers, chartqa, pages, scene_text, school
from pipelines.sources.own import media_files, rows
from pipelines.sources.pairs import marvl, nlvr
from pipelines.sources.remote_sensing import rsvqa
from pipelines.sources.segmentation import refcoco
from pipelines.sources.spec import SourceSpec
from pipelines.sources.video import captions, questions
from pipelines.sources.vqa import counting, photos, scene_graphs
from pipelines.sources.web import annotated, examples, images

_READERS = (
    annotated, book_covers, captions, chartqa, coco, counting, examples, images, marvl,
    media_files, multilingual, nlvr, pages, photos, questions, refcoco, rows, rsvqa,
    scene_graphs, scene_text, school, scicap, screens, textcaps,
)  # fmt: skip

_FOUND = {spec.name: (spec, reader) for reader in _READERS for spec in reader.SOURCES}

SOURCES: dict[str, SourceSpec] = {name: spec for name, (spec, _) in sorted(_FOUND.items())}


def get(name: str) -> SourceSpec:
    """Returns a source.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if name not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {name!r}.")
    return SOURCES[name]


def reader_module(name: str) -> str:
    """Returns the module that reads a source, such as "pipelines.sources.documents.chartqa".

    Raises:
      ValueError: as `get`.
    """
    return _FOUND[get(name).name][1].__name__
