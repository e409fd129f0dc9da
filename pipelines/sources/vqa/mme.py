"""MME: two yes-or-no questions about each image, in ten tasks of perception and four of cognition.

    [MME_Benchmark_release_version/[MME_Benchmark/]]
      {count,color,...}/{stem}.txt, {stem}.jpg    lines "question <tab> Yes|No"; some .png
      {artwork,scene,...}/questions_answers_YN/{stem}.txt, images/{stem}.jpg

The Hub's lmms-lab/MME can be read as well.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelines.benchmarks.prompts import SHORT_ANSWER
from pipelines.benchmarks.row import Benchmark, ResultRow
from pipelines.records.schema import BadInput
from pipelines.sources.benchmark_sources import published_source, table_patterns
from pipelines.sources.reading.corpus import Corpus
from pipelines.sources.reading.hub import TablePictures, TableRow
from pipelines.sources.reading.item import Item, Listing, Media
from pipelines.sources.reading.layout import question_item, text_under
from pipelines.sources.reading.row_files import read_file, read_rows

_TASKS = {
    "perception": (
        "existence",
        "count",
        "position",
        "color",
        "posters",
        "celebrity",
        "scene",
        "landmark",
        "artwork",
        "OCR",
    ),
    "cognition": (
        "commonsense_reasoning",
        "numerical_calculation",
        "text_translation",
        "code_reasoning",
    ),
}

_FOLDERS = (
    "",
    "MME_Benchmark_release_version/",
    "MME_Benchmark_release_version/MME_Benchmark/",
)

_REQUEST = " Please answer yes or no."
"""End of each question, which LLaVA's own evaluation takes off."""

MME = Benchmark(
    name="mme",
    config="",
    prompt=f"{{text}}\n{SHORT_ANSWER}",
    text_len=96,
    antialias="always",
    metric="mme",
    eval_split="perception",
    rows=(
        ResultRow(
            titles=("MME (perception)",),
            split="perception",
            suite="other",
            size=2_114,
            resolutions=(),
        ),
        ResultRow(
            titles=("MME (cognition)",), split="cognition", suite="other", size=260, resolutions=()
        ),
    ),
)


def _read_mme(corpus: Corpus, split: str, file: Path | list[Path]) -> Listing:
    if isinstance(file, list):
        pictures = TablePictures(corpus)

        def item_of_row(row: TableRow) -> Item | None:
            if (task := text_under(row, "category")) not in _TASKS[split]:
                return None
            image = text_under(row, "question_id")
            media, text = pictures.store(row, Path(image).name), text_under(row, "question")
            return _yes_no_item(split, task, media, image, text, row["answer"])

        yield from read_file(corpus, file, f"mme/{split}", item_of_row)
        return
    # The first task's first file was looked for; the others lie beside its folder.
    inner = file.parent.name == "questions_answers_YN"
    root = file.parents[2 if inner else 1]
    for task in _TASKS[split]:
        nested = root / task / "questions_answers_YN"
        folder, images = (
            (nested, root / task / "images") if nested.is_dir() else (root / task, root / task)
        )
        if not (texts := sorted(folder.glob("*.txt"))):
            raise FileNotFoundError(f"{root / task} has no questions.")
        for path in texts:
            yield from _read_image(corpus, split, task, path, images)


def _read_image(corpus: Corpus, split: str, task: str, path: Path, images: Path) -> Listing:
    """Yields the questions of one file, all about the image of its name."""
    jpeg = images / f"{path.stem}.jpg"
    media = corpus.media(jpeg if jpeg.is_file() else jpeg.with_suffix(".png"))

    def item_of_row(line: str) -> Item:
        text, tab, answer = line.rpartition("\t")
        if not tab:
            raise BadInput(f"line must be a question, a tab and an answer, got {line!r:.80}")
        return _yes_no_item(split, task, media, f"{task}/{path.stem}", text, answer)

    name = f"mme/{split}/{task}/{path.stem}"
    yield from read_rows(corpus, path, name, _question_lines(corpus, path), item_of_row)


def _question_lines(corpus: Corpus, path: Path) -> Iterator[str]:
    yield from (line for line in corpus.read_text(path).splitlines() if line.strip())


def _yes_no_item(
    split: str, task: str, media: Media, image: str, text: str, answer: object
) -> Item:
    answer = str(answer).strip().lower()
    if answer not in ("yes", "no"):
        raise BadInput(f"answer must be Yes or No, got {answer!r}")
    meta = {"task": task, "image": image}
    text = text.strip().removesuffix(_REQUEST)
    # An image's two questions differ in their texts; those are the keys.
    return question_item(MME, split, media, text, text, [answer], image=image, meta=meta)


SOURCES = (
    published_source(
        MME,
        splits=tuple(_TASKS),
        files=lambda split: (
            tuple(
                f"{folder}{_TASKS[split][0]}/{inner}*.txt"
                for folder in _FOLDERS
                for inner in ("", "questions_answers_YN/")
            ),
        ),
        read=_read_mme,
        publisher="github.com/BradyFU/Awesome-Multimodal-Large-Language-Models",
        tables={split: table_patterns("test") for split in _TASKS},
        per_table=False,
    ),
)
