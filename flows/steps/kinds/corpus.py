"""A synthetic corpus, in the published layouts of real ones.

Files:
  *: a folder for each corpus, in its published layout
"""

from collections.abc import Iterator

from flows.steps.kind import Kind, StepContext
from flows.steps.kinds.streamed import stream_progress
from infra.progress import Progress
from pipelines.synthetic.config import CorpusConfig


def make(work: StepContext) -> Iterator[Progress]:
    """Renders the corpus of a `CorpusConfig`."""
    from pipelines.synthetic.render import render_corpus

    yield from stream_progress(lambda report: render_corpus(work.config, str(work.out), report))
    work.counts["files"] = sum(path.is_file() for path in work.out.rglob("*"))


CORPUS = Kind(name="corpus", make=make, spec=CorpusConfig, libraries=("pillow", "av", "pyarrow"))
