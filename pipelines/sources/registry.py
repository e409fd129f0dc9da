"""The tables of sources and of the benchmarks that they read, by name.

Only this module of the pipelines imports every reader. The code of a dataset is the modules that
`pipelines.prepare.run` imports, without this one, and the one reader that `reader_module` names. So
an edit of another reader does not change it.
"""

from infra.errors import did_you_mean
from infra.references import module_reference
from pipelines.benchmarks.row import Benchmark, ResultRow
from pipelines.sources.captions import coco, multilingual, scicap, screens, textcaps
from pipelines.sources.documents import book_covers, chartqa, pages, scene_text, school
from pipelines.sources.own import functions, media_files, rows
from pipelines.sources.own_source import OwnSource
from pipelines.sources.pairs import marvl, nlvr
from pipelines.sources.reading.spec import SourceSpec, with_other_prompt
from pipelines.sources.remote_sensing import rsvqa
from pipelines.sources.segmentation import refcoco
from pipelines.sources.video import captions, questions
from pipelines.sources.vqa import (
    aokvqa,
    counting,
    mmbench,
    mme,
    mmmu,
    photos,
    scene_graphs,
)
from pipelines.sources.web import annotated, conversations, examples, images

_READERS = (
    annotated,
    aokvqa,
    book_covers,
    captions,
    chartqa,
    coco,
    conversations,
    counting,
    examples,
    images,
    marvl,
    media_files,
    mmbench,
    mme,
    mmmu,
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

_READER_OF = {spec.name: reader for reader in _READERS for spec in reader.SOURCES}

SOURCES: dict[str, SourceSpec] = {
    spec.name: spec
    for spec in sorted(
        (spec for reader in _READERS for spec in reader.SOURCES), key=lambda spec: spec.name
    )
}

BENCHMARKS: dict[str, Benchmark] = {
    name: spec.benchmark for name, spec in SOURCES.items() if spec.benchmark is not None
}
"""Prompts, splits, frames, metrics and recipes; each is declared beside its reader."""

OWN_FORMATS = tuple(spec.name for spec in rows.SOURCES)
"""Formats of the user's own examples."""


def source_spec(source: str | OwnSource) -> SourceSpec:
    """Returns the spec of a source.

    Args:
      source: name of the corpus layout, or a source with the user's rows or prompt.

    Raises:
      ValueError: if there is no source of that name, with the list of all names.
    """
    if isinstance(source, OwnSource) and source.reader in BENCHMARKS:
        return with_other_prompt(SOURCES[source.reader], source.prompt)
    if isinstance(source, OwnSource):
        return (rows.row_source if source.reader in OWN_FORMATS else functions.function_source)(
            source
        )
    if source not in SOURCES:
        raise ValueError(
            f"source must be one of {', '.join(SOURCES)}, got {source!r}"
            f"{did_you_mean(source, SOURCES) if isinstance(source, str) else ''}."
        )
    return SOURCES[source]


def reader_module(name: str) -> str:
    """Returns the module that reads a source, such as "pipelines.sources.documents.chartqa".

    Args:
      name: name of the source, or a function that the user wrote, "module:name".

    Raises:
      ValueError: as in `source_spec`.
    """
    return (functions if module_reference(name) else _READER_OF[source_spec(name).name]).__name__


def may_have_clips(name: str) -> bool:
    """Returns whether items of a source may show clips; those of a user's function may.

    Args:
      name: as in `reader_module`.

    Raises:
      ValueError: as in `source_spec`.
    """
    return module_reference(name) is not None or source_spec(name).has_clips


def row_of_title(title: str) -> tuple[Benchmark, ResultRow]:
    """Returns the benchmark and row that the paper's tables call `title`.

    Raises:
      ValueError: if no row has that title.
    """
    for benchmark in BENCHMARKS.values():
        for row in benchmark.rows:
            if title in row.titles:
                return benchmark, row
    raise ValueError(f"no benchmark has a row {title!r}.")
