"""Reads the inputs of a report: the scores, the guesses, and the circumstances of each score."""

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, cast

from flows.report.build import build_report
from flows.report.cell_text import drawn_budgets_text
from flows.report.cells import CHANCE, SCREENED, CellKey, Plan, Report, Score, ScoreOrigin
from flows.report.comparable import comparable_scores
from flows.report.items import Items
from flows.report.items_reader import ItemsReader
from infra.store.births import with_births
from infra.store.digest import canonical_json
from infra.store.manifest import Manifest
from infra.store.store import Artifact
from infra.store.stored_folder import open_stored_folder
from model import files
from model.decode.config import DecodeConfig
from model.eval.items_file import ItemsFile
from model.eval.score_json import read_score
from pipelines.hygiene.matches import CONTAMINATION, MATCHES, read_matches

ANSWER_MS = "answer_ms"
"""Key of a predictions artifact's counts: time of an answer [ms].

It is in none of the artifact's files, since it differs each time.
"""

DECIDING = ("jax", "jaxlib", "flax", "optax", "numpy")
"""Packages whose versions change a score's digits but are no part of an artifact's identity."""


def gather_report(
    plan: Plan,
    accepted: Collection[CellKey],
    artifacts: Mapping[str, Artifact],
    recall: Callable[[str], Artifact],
    *,
    mixed: bool = False,
) -> Report:
    """Returns the report of a results artifact's inputs.

    Args:
      plan: the cells that the study plans to fill.
      accepted: cells that rest on an artifact that was kept although its code has changed since.
      artifacts: role -> input artifact of the report.
      recall: function from a key to its artifact.
      mixed: whether to average scores of several library versions and accelerators; else only
        those of the commonest platform count, and a note names the others.

    Raises:
      ValueError: if there is no score, or the scores of a benchmark differ in data or decoding.
    """
    cell_of_role = {role: CellKey.of_role(role) for role in artifacts}
    reader = ItemsReader()
    scores = [
        read_cell(cell, artifacts[role], recall, reader, accepted=cell in accepted)
        for role, cell in cell_of_role.items()
        if cell is not None
    ]
    if not scores:
        raise ValueError("no cell was scored, so there is no table.")
    chosen_scores, notes = comparable_scores(scores, mixed=mixed)
    for sub_plan in plan.views:
        if sub_plan.draws:
            text = drawn_budgets_text(sub_plan.draws, sub_plan.view_text)
            notes.append(f"{text[0].upper()}{text[1:]}")
    chance, guesses, question_blind = {}, {}, {}
    for row, values, items in _read_guesses(artifacts, reader):
        chance[row], guesses[row] = values["score"], items
        question_blind[row] = values.get("without_question")
    return build_report(
        plan,
        chosen_scores,
        chance,
        guesses,
        notes,
        _contaminated_sources(plan, artifacts),
        question_blind,
    )


def _contaminated_sources(plan: Plan, artifacts: Mapping[str, Artifact]) -> set[str]:
    """Returns the sources of evaluation pictures that a training corpus holds.

    A source found through one benchmark counts as seen in every benchmark that asks about it.
    """
    ids: dict[str, set[str]] = {}
    for role, artifact in artifacts.items():
        if role.startswith(SCREENED):
            for match in read_matches(open_stored_folder(artifact.uri).local_folder(MATCHES)):
                if match.kind == CONTAMINATION:
                    row = match.dataset.removesuffix("/eval")
                    ids.setdefault(row, set()).add(match.match)
    # A screening names a row as a study of its backbone alone does; pictures are the same for all.
    backbones = {row: sub_plan.backbone for sub_plan in plan.views for row in sub_plan.benchmarks}
    cells = {
        cell.benchmark.removesuffix(f"@{backbones[cell.benchmark]}"): role
        for role in artifacts
        if (cell := CellKey.of_role(role))
    }
    # Hygiene names records; items are grouped by source. A file of items has both.
    sources: set[str] = set()
    for row in ids.keys() & cells.keys():
        columns = ItemsFile(artifacts[cells[row]].path).columns("id", "source_sha256")
        sources |= {source for item, source in zip(*columns, strict=True) if item in ids[row]}
    return sources


def read_cell(
    cell: CellKey,
    artifact: Artifact,
    recall: Callable[[str], Artifact],
    reader: ItemsReader,
    *,
    accepted: bool,
) -> Score:
    """Returns the score of a cell, with its items and circumstances; arguments as above.

    Raises:
      ValueError: if the artifact is not of kind `scores`.
    """
    check_scores(artifact)
    metrics = read_score(artifact.path / files.SCORE)
    items, plain = reader.of_scores(artifact.path, metrics["score"])
    manifest = recall(artifact.manifest.inputs["predictions"].key).manifest
    # The circumstances of a score are those of its evaluation and of the training before it: either
    # may have rounded differently.
    trained = trained_checkpoint(manifest, recall)
    # The batch size changes no answer's text beyond rounding, so it does not divide scores.
    decode = with_births(DecodeConfig, manifest.config["decode"])
    del decode["batch_size"]
    decode["metric"] = metrics["metric"]
    return Score(
        **dataclasses.asdict(cell),
        score=metrics["score"],
        metric=metrics["metric"],
        artifact=artifact.key,
        accepted=accepted,
        bfloat16=manifest.counts.get("precision") == "bfloat16",
        items=items,
        plain=plain,
        answer_ms=cast(float | None, manifest.counts.get(ANSWER_MS)),
        origin=ScoreOrigin(
            data=manifest.inputs["data"].content,
            decoding=canonical_json(decode),
            platform=_training_and_evaluation(_platform_text(trained), _platform_text(manifest)),
            cpu=_training_and_evaluation(_processor_text(trained), _processor_text(manifest)),
        ),
    )


def trained_checkpoint(predictions: Manifest, recall: Callable[[str], Artifact]) -> Manifest:
    """Returns the checkpoint behind predictions, also of those that were decoded from its cast."""
    checkpoint = recall(predictions.inputs["checkpoint"].key).manifest
    if checkpoint.kind == "cast":
        return recall(checkpoint.inputs["checkpoint"].key).manifest
    return checkpoint


def check_scores(artifact: Artifact) -> None:
    """Refuses the predictions that tables of earlier versions were made from.

    Raises:
      ValueError: if the artifact is not of kind `scores`.
    """
    if artifact.manifest.kind != "scores":
        raise ValueError(
            f"a cell must be of kind scores, got {artifact.key}: its table is of an earlier "
            f"version, and `parcel run` of its config makes a new one."
        )


def _read_guesses(
    artifacts: Mapping[str, Artifact], reader: ItemsReader
) -> Iterator[tuple[str, dict[str, Any], Items]]:
    for role, artifact in artifacts.items():
        if role.startswith(CHANCE):
            path = artifact.path / files.CHANCE
            values = read_score(path)
            if type(values.get("without_question", 0.0)) not in (int, float):
                raise ValueError(
                    f"{path} must have a number as without_question, got "
                    f"{values['without_question']!r:.60}; make it again."
                )
            items, _ = reader.of_guess(artifact.path, values["score"])
            yield role.removeprefix(CHANCE), values, items


def _platform_text(manifest: Manifest) -> str:
    packages = manifest.environment.get("packages", {})
    accelerator = manifest.environment.get("hardware", {}).get("accelerator")
    versions = ", ".join(f"{name} {packages[name]}" for name in DECIDING if name in packages)
    return f"{versions} on {accelerator or 'an unrecorded accelerator'}"


def _processor_text(manifest: Manifest) -> str:
    hardware = manifest.environment.get("hardware", {})
    return hardware.get("cpu") or hardware.get("machine", "an unrecorded processor")


def _training_and_evaluation(trained: str, evaluated: str) -> str:
    return trained if trained == evaluated else f"{trained}, evaluated with {evaluated}"
