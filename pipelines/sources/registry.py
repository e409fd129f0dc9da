"""The sources there are, by name.

The only module of the pipelines that knows every reader. A dataset is made by the code that
`pipelines.prepare.run` imports, without this module, and by the one reader that `reader_module`
names: an edit in another reader does not concern it.
"""

from infra.references import in_module
from pipelines.sources.captions import coco, multilingual, scicap, screens, textcaps
from pipelines.sources.documents import book_covers, chartqa, pages, scene_text, school
from pipelines.sources.own import functions, media_files, rows
from pipelines.sources.own_source import OwnSource
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


OWN = tuple(spec.name for spec in rows.SOURCES)
"""Formats of one's own examples."""


def get(source: str | OwnSource) -> SourceSpec:
    """Returns a source: by its name, or the user's own.

    Raises:
      ValueError: if there is none of that name, with the list of those there are.
    """
    if isinstance(source, OwnSource):
        return (rows if source.reader in OWN else functions).source(source)
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {source!r}.")
    return SOURCES[source]


def reader_module(name: str) -> str:
    """Returns the module that reads a source, such as "pipelines.sources.documents.chartqa".

    Args:
      name: of the source, or a function of the user's own, "module:name".

    Raises:
      ValueError: as `get`.
    """
    return (functions if in_module(name) else _FOUND[get(name).name][1]).__name__
