"""Writes a model card in the Hub's form from lineage; it says so where nothing is on record.

Source: https://huggingface.co/docs/hub/model-cards (metadata, `model-index`).
"""

import dataclasses
from collections.abc import Iterator, Sequence

from flows.lineage.data_summary import SEEN_HEAD, summarise_data
from flows.lineage.trace import SHORT
from flows.lookup.target import LookupTarget
from flows.report.cells import Cell
from flows.report.interval import ScoreInterval, estimate_interval
from flows.report.items import is_percentage
from flows.report.items_reader import ItemsReader
from flows.report.markdown import markdown_table, plain
from flows.report.paired_scores import PairedScores
from flows.steps.registry import kind_of
from infra.errors import ConfigError
from infra.store.lineage import walk_lineage
from infra.store.manifest import Manifest
from infra.store.store import Artifact, Store
from infra.store.stored_folder import open_stored_folder
from infra.yaml_text import dump_yaml
from model.config import ModelConfig
from model.connector.budgets import supported_budgets
from model.eval.score_json import read_score
from model.files import SCORE
from pipelines.benchmarks.row import fill_prompt
from pipelines.hygiene.matches import CONTAMINATION, read_matches
from pipelines.images.square import ImageSpec
from pipelines.sources.registry import BENCHMARKS

LOAD = """\
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

release = "."  # This folder, or its name on the Hub.
processor = AutoProcessor.from_pretrained(release, trust_remote_code=True)
model = AutoModelForImageTextToText.from_pretrained(release, trust_remote_code=True)

inputs = processor(images=Image.open("image.png"), text={text}, budget={budget})
tokens = model.generate(**inputs)[0, inputs["input_ids"].shape[1] :]
print(processor.decode(tokens, skip_special_tokens=True))
"""

_NO_ORIGIN = (
    "This was released from a folder, not from a store of artifacts: its data, recipe, scores and "
    "contamination are not on record."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointOrigin:
    """A checkpoint in a store, with its evaluations.

    Attributes:
      store: the store of the artifacts, or a snapshot of it.
      name: name that the checkpoint was asked for by.
      checkpoint: the checkpoint.
      scores: scores of this checkpoint, on every benchmark and at every budget.
      cells: cells of its method in the study's table, over all seeds; empty if `name` is the key of
        an artifact.
    """

    store: Store
    name: str
    checkpoint: Artifact
    scores: tuple[Artifact, ...]
    cells: tuple[Cell, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BenchmarkScore:
    """One evaluation of the checkpoint."""

    benchmark: str
    budget: int
    metric: str
    num: int
    score: ScoreInterval


def model_card(
    cfg: ModelConfig,
    origin: CheckpointOrigin | None,
    *,
    name: str,
    licence: str,
    dtype: str,
    certificate: tuple[str, str] | None = None,
) -> str:
    """Returns the text of a release's README.md.

    Args:
      cfg: the checkpoint's model config.
      origin: the checkpoint in its store; None if it was released from a folder.
      name: name of the release.
      licence: licence as the Hub spells it; "" if not stated.
      dtype: dtype of the released tensors.
      certificate: name of the table's certificate beside the card, and the public key that signed
        it; None without one.
    """
    # The metadata come first in the file, between two lines of dashes, and need the scores. Each
    # part below is a section; without an origin the card ends with how to load it.
    benchmark_scores = (
        sorted(
            _benchmark_scores(origin),
            key=lambda entry: (entry.benchmark, entry.budget),
        )
        if origin
        else []
    )
    artifacts = _training_history(origin) if origin else []
    data = _training_data(origin) if origin else []
    stages = [a.manifest for a in artifacts if kind_of(a.manifest).holds == "checkpoint"]
    lines = [
        "---",
        dump_yaml(_card_metadata(name, licence, benchmark_scores), sort_keys=False).strip(),
        "---",
    ]
    lines += [f"# {name}", "", *_model_lines(cfg, licence, dtype)]
    lines += [
        "",
        "## How to load",
        "```python",
        LOAD.format(
            text=repr(_example_prompt(origin)), budget=_example_budget(cfg, origin)
        ).strip(),
        "```",
    ]
    lines += [
        "`budget` is the number of soft tokens per image: one of the list above. An image of "
        "a list is one of a pair, or a frame. `text` is a question alone, which the processor puts "
        f"into the prompt template `{cfg.prompt}`.",
        "",
        "`python serve_parcel.py` serves it to clients of OpenAI's API; `chat_template_kwargs` of "
        'a request, `{"budget": …}`, chooses its budget.',
    ]
    if origin is None:
        lines += ["", "## Origin", _NO_ORIGIN]
        return "\n".join(lines) + "\n"
    # From what went in, over what was done, to what came out, and how to do it again.
    lines += ["", "## Data", *_data_lines(data)]
    lines += ["", "## Licences of the data", *_licence_lines(origin)]
    lines += ["", "## Recipe", *_recipe_lines(stages)]
    lines += ["", "## Scores", *_score_lines(benchmark_scores, origin.cells)]
    lines += ["", "## Contamination", *_contamination_lines(data)]
    lines += ["", "## How to rebuild it", *_replay_lines(origin)]
    if certificate:
        lines += ["", "## Certificate", *_certificate_lines(*certificate)]
    return "\n".join(lines) + "\n"


def _card_metadata(name: str, licence: str, benchmark_scores: Sequence[_BenchmarkScore]) -> dict:
    metadata: dict = {"license": licence} if licence else {}
    metadata |= {
        "library_name": "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": ["parcel", "elastic-visual-tokens", "custom_code"],
    }
    # A `model-index` is a table of results: without scores there is none.
    if not benchmark_scores:
        return metadata
    benchmarks = dict.fromkeys(entry.benchmark for entry in benchmark_scores)
    # As the Hub reads it: a benchmark is a dataset, with a metric for each budget.
    #
    #   - dataset: {name: "chartqa:test_human"}
    #     metrics:
    #       - {name: relaxed_accuracy at 64 soft tokens, value: 41.2, args: {budget: 64}}
    results = [
        {
            "task": {"type": "image-text-to-text"},
            "dataset": {"type": benchmark, "name": benchmark},
            "metrics": [
                {
                    "type": entry.metric,
                    "name": f"{entry.metric} at {entry.budget} soft tokens",
                    "value": round(entry.score.mean, 4),
                    "args": {"budget": entry.budget},
                }
                for entry in benchmark_scores
                if entry.benchmark == benchmark
            ],
        }
        for benchmark in benchmarks
    ]
    return metadata | {"model-index": [{"name": name, "results": results}]}


def _model_lines(cfg: ModelConfig, licence: str, dtype: str) -> Iterator[str]:
    # A long list of even numbers is said as a range: nobody reads 128 of them.
    served = supported_budgets(cfg)
    first, last = min(served), max(served)
    even = len(served) > 6 and served == tuple(range(first, last + 1, 2))
    budgets_text = f"even numbers from {first} to {last}" if even else ", ".join(map(str, served))
    yield (
        f"A vision-language model: image tower `{cfg.vision.family}` at {cfg.vision.image_px} px, "
        f"connector `{cfg.connector.kind}`, decoder `{cfg.text.family}`. Soft tokens per image: "
        f"{budgets_text}."
    )
    yield ""
    yield f"Trained with activations of {cfg.dtype}; the tensors here are {dtype}."
    if not licence:
        yield "No licence was stated when it was released."


def _example_budget(cfg: ModelConfig, origin: CheckpointOrigin | None) -> int:
    """Returns a budget at which the checkpoint was scored; without scores, one that it serves."""
    scored = {score.manifest.config["budget"] for score in origin.scores} if origin else set()
    budgets = sorted(scored) or supported_budgets(cfg)
    return budgets[len(budgets) // 2]


def _example_prompt(origin: CheckpointOrigin | None) -> str:
    """Returns a prompt as the first benchmark that scored the checkpoint asks; else a caption's.

    It is the benchmark's own form with other words: its questions may not be for everybody.
    """
    if origin is None or not origin.scores:
        return "caption en"
    data = origin.store.get_cached(origin.scores[0].manifest.inputs["data"].key)
    reader = data.manifest.config.get("reader", "")
    if isinstance(reader, str):
        form = BENCHMARKS[reader].prompt if reader in BENCHMARKS else "{text}"
    else:
        form = reader["prompt"]
    return fill_prompt(form, text="What is shown?", choices="A. yes B. no", context="", lang="en")


def _training_history(origin: CheckpointOrigin) -> list[Artifact]:
    # Each artifact once, however many paths lead to it.
    visits = walk_lineage(origin.store, origin.checkpoint.key)
    return [visit.artifact for visit in visits if not visit.is_again]


def _training_data(origin: CheckpointOrigin) -> list[Artifact]:
    """Returns the datasets that a checkpoint learned from, through all its ancestors.

    Datasets that were only watched, probed or screened against are left out.
    """
    # Down the history, except through roles that taught the checkpoint nothing:
    #
    #   data/0, tokenizer, init      followed
    #   watched/0, probe/train       only looked at
    #   of a screening: dataset      followed; what it was compared with is not
    artifacts, visited_keys, key_queue = list[Artifact](), set[str](), [origin.checkpoint.key]
    while key_queue:
        artifact = origin.store.get_cached(key_queue.pop())
        if artifact.key in visited_keys:
            continue
        visited_keys.add(artifact.key)
        kind, inputs = kind_of(artifact.manifest), artifact.manifest.inputs
        if kind.holds == "dataset":
            artifacts.append(artifact)
        key_queue += [
            entry.key
            for role, entry in sorted(inputs.items(), reverse=True)
            if not kind.leaves_out(role)
        ]
    return artifacts


def picture_settings(origin: CheckpointOrigin) -> dict[str, str]:
    """Returns the fields of `ImageSpec` by which the checkpoint's pictures became squares.

    They are those of the dataset that it learned from last, without those at their defaults.
    """
    prepared = (artifact.manifest.config.get("prepare") for artifact in _training_data(origin))
    settings = next(filter(None, prepared), {})
    defaults = vars(ImageSpec())
    values = {
        name: settings.get(name, defaults[name]) for name in ("background", "aspect", "pad_colour")
    }
    return {name: value for name, value in values.items() if value != defaults[name]}


def _benchmark_scores(origin: CheckpointOrigin) -> Iterator[_BenchmarkScore]:
    reader = ItemsReader()
    for artifact in origin.scores:
        manifest = artifact.manifest
        metrics = read_score(artifact.path / SCORE)
        items, _ = reader.of_scores(artifact.path, metrics["score"])
        split = origin.store.get_cached(manifest.inputs["data"].key).manifest.name
        yield _BenchmarkScore(
            benchmark=split.removeprefix("prepare ").removesuffix("/eval"),
            budget=manifest.config["budget"],
            metric=metrics["metric"],
            num=metrics["num"],
            # One training, so the interval is over the items alone.
            score=estimate_interval(
                [
                    PairedScores.of(
                        [metrics["score"]], [items], is_percentage=is_percentage(metrics["metric"])
                    )
                ],
                [0],
            ),
        )


def _data_lines(data: Sequence[Artifact]) -> Iterator[str]:
    yield (
        "All datasets that this checkpoint, its ancestors, its tokenizer and its mask codec "
        "learned from."
    )
    yield "Their licences are in the next section."
    yield ""
    yield "| dataset | records | rejected | artifact | sha256 |"
    yield "|---|---|---|---|---|"
    # Both a dataset and its screened version are in the history. Only the second was learned from,
    # so it has the line, with what the screening removed as its rejects.
    before = _keys_before_screening(data)
    for artifact in data:
        if artifact.key in before:
            continue  # Its screened version has a line instead.
        manifest, counts = artifact.manifest, artifact.manifest.counts
        records, rejected = counts.get("records", "?"), counts.get("rejected", "?")
        if _is_screened(artifact):
            rejected = counts["removed"]
            records = int(counts["records"]) - int(rejected)
        digest = manifest.content[:SHORT]
        yield f"| {plain(manifest.name)} | {records} | {rejected} | `{artifact.key}` | `{digest}` |"
    yield ""
    yield "Each is described in `croissant/`, with that of the evaluations, as Croissant 1.0."


def _licence_lines(origin: CheckpointOrigin) -> Iterator[str]:
    target = LookupTarget(name=origin.name, artifacts=(origin.checkpoint,))
    try:
        summary = summarise_data(origin.store, target)
    except ConfigError as error:  # A dataset's files may be gone, or no training is on record.
        yield f"What its trainings saw cannot be counted: {error}"
        return
    trainings = ", ".join(f"{training.name} ({training.steps:,})" for training in summary.trainings)
    yield (
        f"What its trainings really saw, counted over the batches of all their steps: {trainings}. "
        f"Examples count with repeats, records once."
    )
    yield ""
    rows = [[*map(plain, row.cells())] for row in summary.seen]
    yield markdown_table(SEEN_HEAD, rows, range(len(SEEN_HEAD) - 2)).rstrip()
    if unstated := sum(row.records for row in summary.seen if not row.licence):
        yield ""
        yield f"Of {unstated:,} records no licence is stated; ask those who publish them."


def _is_screened(artifact: Artifact) -> bool:
    """Whether a dataset is another one without the records that matched others."""
    return bool(kind_of(artifact.manifest).matches)


def _keys_before_screening(data: Sequence[Artifact]) -> set[str]:
    """Returns the keys of the datasets of which others are the screened versions."""
    return {
        entry.key
        for artifact in filter(_is_screened, data)
        for role, entry in artifact.manifest.inputs.items()
        if not kind_of(artifact.manifest).leaves_out(role)
    }


def _recipe_lines(stages: Sequence[Manifest]) -> Iterator[str]:
    yield "The stages, last first, with all their settings."
    for manifest in stages:
        counts = ", ".join(f"{name} {value}" for name, value in manifest.counts.items())
        yield ""
        seed = "" if manifest.seed is None else f", seed {manifest.seed}"
        yield f"### {plain(manifest.name)}"
        yield f"`{manifest.key}`{seed}{f' ({counts})' if counts else ''}"
        if manifest.config:
            yield "```yaml"
            yield dump_yaml(manifest.config, sort_keys=True).strip()
            yield "```"


def _score_lines(
    benchmark_scores: Sequence[_BenchmarkScore], cells: Sequence[Cell]
) -> Iterator[str]:
    if not benchmark_scores:
        yield "This checkpoint was not evaluated in the store that it comes from."
        return
    yield "Scores of this checkpoint; the 95 % interval is over items."
    yield ""
    yield "| benchmark | budget | metric | score | 95 % interval | items |"
    yield "|---|---|---|---|---|---|"
    # Two tables, which answer two questions: how good is this checkpoint, and how good is its
    # method when trained again with other seeds?
    for entry in benchmark_scores:
        interval = _interval_text(entry.score.low, entry.score.high)
        yield (
            f"| {entry.benchmark} | {entry.budget} | {entry.metric} | {entry.score.mean:.2f} "
            f"| {interval} | {entry.num} |"
        )
    if cells:
        yield ""
        yield (
            "Scores of its method in the study, over all seeds; the interval is over seeds and "
            "items."
        )
        yield ""
        yield "| benchmark | budget | mean | 95 % interval | seeds |"
        yield "|---|---|---|---|---|"
        for cell in cells:
            interval = _interval_text(cell.low, cell.high)
            yield f"| {cell.benchmark} | {cell.budget} | {cell.mean:.2f} | {interval} | {cell.n} |"


def _interval_text(low: float | None, high: float | None) -> str:
    return "not known" if low is None or high is None else f"{low:.2f} to {high:.2f}"


def _contamination_lines(data: Sequence[Artifact]) -> Iterator[str]:
    # Per screened dataset, with what it was compared, and what was found:
    #
    #   - screen web was compared with chartqa:val/eval: records 900, removed 2.
    #       - 2 of its records showed a picture of chartqa:val/eval: removed
    screened = [artifact for artifact in data if _is_screened(artifact)]
    if not screened:
        yield "No training data was screened for pictures of the evaluation splits."
        return
    for artifact in screened:
        manifest = artifact.manifest
        num_matches: dict[str, int] = {}
        file = kind_of(manifest).matches
        for match in read_matches(open_stored_folder(artifact.uri).local_folder(file)):
            if match.kind == CONTAMINATION:
                num_matches[match.dataset] = num_matches.get(match.dataset, 0) + 1
        against = ", ".join(filter(kind_of(manifest).leaves_out, sorted(manifest.inputs)))
        counts = ", ".join(f"{name} {value}" for name, value in manifest.counts.items())
        yield f"- {manifest.name} was compared with {against or 'itself only'}: {counts}."
        for dataset, number in sorted(num_matches.items()):
            if manifest.config["contamination"] == "remove":
                yield f"    - {number} of its records showed a picture of {dataset}: removed"
            else:
                yield f"    - {number} of its records show a picture of {dataset}"
    # Said of every other dataset, so that silence never reads as "clean".
    done = {a.key for a in screened} | _keys_before_screening(data)
    others = [artifact.manifest.name for artifact in data if artifact.key not in done]
    if others:
        yield f"- not screened: {', '.join(others)}"


def _certificate_lines(file: str, public_key: str) -> Iterator[str]:
    yield (
        f"`{file}` certifies the table above: it is signed, with the answers that its scores are "
        "computed from, the manifests of all data and trainings behind it, and every run of the "
        "study's name. This checks it:"
    )
    yield "```sh"
    yield f"parcel verify {file} --public-key {public_key}"
    yield "```"


def _replay_lines(origin: CheckpointOrigin) -> Iterator[str]:
    manifest = origin.checkpoint.manifest
    yield (
        "With access to the store (`--store`), these commands show its lineage and rebuild it byte "
        "for byte:"
    )
    yield "```sh"
    yield f"parcel lineage trace {manifest.key}"
    yield f"parcel lineage replay {manifest.key}"
    yield f"parcel lineage replay {manifest.key} --from raw"
    yield "```"
    # What the bytes depend on, as it was recorded; a gap is named, since a reader would otherwise
    # take it for "nothing special".
    environment = manifest.environment
    hardware, git = environment.get("hardware", {}), environment.get("git") or {}
    packages = environment.get("packages", {})
    versions = ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))
    yield f"- asked for as `{origin.name}`; parameters `sha256:{manifest.content}`"
    commit = f"git {git['commit']}" if git.get("commit") else "no git commit"
    version = f", version {git['version']}" if git.get("version") else ""
    refused = f" ({git['refused']})" if git.get("refused") else ""
    yield f"- source tree `{manifest.source or 'not kept'}`, {commit}{refused}{version}"
    yield f"- on {hardware.get('accelerator') or 'an unrecorded accelerator'}"
    yield f"- with {versions or 'unrecorded versions'}"
