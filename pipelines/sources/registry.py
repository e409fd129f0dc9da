"""The table of sources, by name.

Only this module of the pipelines imports every reader. The code of a dataset is the modules that
`pipelines.prepare.run` imports, without this one, and the one reader that `reader_module` names. So
an edit of another reader does not change it.
"""

from infra.references import module_reference
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
    annotated,
    book_covers,
    captions,
    chartqa,
    coco,
    counting,
    examples,
    images,
    marvl,
    media_files,
    multilingual,
    nlvr,
    pages,
    photos,
    questions,
    refcoco,
    rows,
    rsvqa,
    scene_graphs,
    scene_text,
    school,
    scicap,
    screens,
    textcaps,
)

_FOUND = {spec.name: (spec, reader) for reader in _READERS for spec in reader.SOURCES}

SOURCES: dict[str, SourceSpec] = {name: spec for name, (spec, _) in sorted(_FOUND.items())}


OWN = tuple(spec.name for spec in rows.SOURCES)
"""Formats of the user's own examples."""


def get(source: str | OwnSource) -> SourceSpec:
    """Returns the spec of a source.

    Args:
      source: name of the corpus layout, or a source that the user wrote.

    Raises:
      ValueError: if there is no source of that name, with the list of all names.
    """
    if isinstance(source, OwnSource):
        return (rows if source.reader in OWN else functions).source(source)
    if source not in SOURCES:
        raise ValueError(f"source must be one of {', '.join(SOURCES)}, got {source!r}.")
    return SOURCES[source]


def reader_module(name: str) -> str:
    """Returns the module that reads a source, such as "pipelines.sources.documents.chartqa".

    Args:
      name: name of the source, or a function that the user wrote, "module:name".

    Raises:
      ValueError: as in `get`.
    """
    return (functions if module_reference(name) else _FOUND[get(name).name][1]).__name__
