"""Tests of a study's plan: steps, FLOPs, memory, time, cost, and what it says it cannot know."""

import datetime
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.graph.specs import decode_of
from flows.plan import plan as planning
from flows.plan.decoding import token_seconds
from flows.plan.plan import plan_markdown, plan_of, plan_text
from flows.plan.prepared import PreparedData, plan_data
from flows.plan.programs import COMPILED_MARGIN, UpdateEstimate, compile_program
from flows.study.load import load
from infra.chips.topology import GIB, Topology
from infra.errors import ConfigError
from infra.store.store import Store
from model.analysis.flops import Modality, prefill_flops
from model.chips.compiler import PYTHON, Compiler, CompilerMissingError
from model.chips.outcome import CompilationOutcome
from model.chips.programs import HeldOutProgram, TrainProgram
from model.connector import budgets
from model.train.memory import num_params, step_bytes
from pipelines.sources.registry import BENCHMARKS

DAY = datetime.date(2026, 11, 23)
SLICE = Topology.parse("v4:2x2x1")
ON = f"compute.topology={SLICE}"
NOTHING = PreparedData(records={})


def made(monkeypatch, folder: Path, *words: str, records=None, price=None, every=False):
    """A plan of the demo, with a compiler that takes a second per 100 tokens."""

    def compiled(program, topology, compiler, *, flops, mfu):
        return UpdateEstimate(
            memory_bytes=program.tokens * 1e8,
            compute_s=program.tokens / 100,
            interconnect_s=0.5,
            traffic_bytes=1e9,
            compile_s=1.0,
        )

    monkeypatch.setattr(planning, "compile_program", compiled)
    own = [f"compute.price={price}"] if price is not None else []
    study = load(overrides=[ON, *own, *words])
    data = PreparedData(records=records or {}, lines=("42 TB stay",))
    return study, plan_of(study, folder, data, day=DAY, every=every)


def test_steps_tokens_and_flops_are_those_of_the_draws(monkeypatch, tmp_path: Path):
    words = ["stage1.batch_size=8", "intermediary.batch_size=8", "stage1.total_steps=30"]
    study, plan = made(monkeypatch, tmp_path, *words)
    first, *others = plan.trainings
    assert (first.name, first.steps) == ("stage1 vanilla", 30)
    assert study.stage1 is not None
    prompt = Modality(name="", num_images=1, text_tokens=study.stage1.text_len)
    model = study.model_of("vanilla")
    assert first.flops == 30 * 8 * 3 * prefill_flops(model, 256, prompt).total
    assert first.tokens == 30 * 8 * (256 + study.stage1.text_len)
    parcel = next(row for row in others if row.name == "intermediary parcel")
    assert study.intermediary is not None
    drawn = budgets.training_budgets(study.model_of("parcel"), study.intermediary.budgets)
    assert sum(shape.share for shape in parcel.shapes) == pytest.approx(1)
    at_most = {shape.tokens for shape in parcel.shapes}
    assert max(at_most) >= max(drawn)
    assert len(at_most) == len(parcel.shapes)


def test_the_largest_shape_is_compiled_and_the_others_are_scaled(monkeypatch, tmp_path: Path):
    words = ["stage1.batch_size=8", "intermediary.batch_size=8"]
    _, plan = made(monkeypatch, tmp_path, *words, price=2.0)
    parcel = next(row for row in plan.trainings if row.name == "intermediary parcel")
    *scaled, largest = parcel.shapes
    assert largest.compiled
    assert not any(shape.compiled for shape in scaled)
    assert parcel.memory_bytes == largest.tokens * 1e8
    for shape in scaled:
        assert shape.compute_s == pytest.approx(
            largest.compute_s * shape.flops / largest.flops  # type: ignore[operator]
        )
        assert shape.interconnect_s == 0.5
    low, high = parcel.step_s or (0.0, 0.0)
    assert high == pytest.approx(low + 0.5)
    assert parcel.chip_hours == pytest.approx(
        [parcel.steps * 4 * seconds / 3600 for seconds in (low, high)]  # type: ignore[operator]
    )
    lines = list(plan_text(plan))
    total = sum(row.chip_hours[1] for row in plan.trainings if row.chip_hours)
    assert plan.chip_hours[1] == pytest.approx(total)
    assert any("at 2 a chip-hour, as given on 2026-11-23" in line for line in lines)
    _, full = made(monkeypatch, tmp_path, *words, every=True)
    parcel = next(row for row in full.trainings if row.name == "intermediary parcel")
    assert all(shape.compiled for shape in parcel.shapes)


def test_what_does_not_fit_is_told_and_marked(monkeypatch, tmp_path: Path):
    words = ["stage1.batch_size=8", "intermediary.batch_size=8"]
    study, plan = made(monkeypatch, tmp_path, *words)
    lines = "\n".join(plan_text(plan))
    assert "does not fit" not in lines

    def refuses(program, topology, compiler, *, flops, mfu):
        return UpdateEstimate(
            memory_bytes=42 * 2**30,
            compute_s=None,
            interconnect_s=None,
            traffic_bytes=None,
            compile_s=1.0,
        )

    monkeypatch.setattr(planning, "compile_program", refuses)
    plan = plan_of(study, tmp_path, NOTHING, day=DAY)
    lines = "\n".join(plan_text(plan))
    assert re.search(r"stage1 vanilla .* 42\.0 GiB a chip", lines)
    assert "42.0!" in lines
    assert plan.chip_hours == (0, 0)


@pytest.mark.parametrize(("topology", "fits"), [("h100:1", False), ("v4:2x2x1", True)])
def test_a_gpu_has_to_have_the_margin_above_its_compilers_word(
    monkeypatch, tmp_path: Path, topology: str, fits: bool
):
    asked = 0.95 * Topology.parse(topology).chip.program_bytes

    def compiled(program, topology, compiler, *, flops, mfu):
        return UpdateEstimate(
            memory_bytes=asked,
            compute_s=1.0,
            interconnect_s=0.0,
            traffic_bytes=0.0,
            compile_s=1.0,
        )

    monkeypatch.setattr(planning, "compile_program", compiled)
    words = [f"compute.topology={topology}", "stage1.batch_size=8", "intermediary.batch_size=8"]
    plan = plan_of(load(overrides=words), tmp_path, NOTHING, day=DAY)
    stage1 = plan.trainings[0]
    assert stage1.memory_bytes == asked
    assert stage1.fits == fits
    lines = "\n".join(plan_text(plan))
    # What it asks for is said with the margin; a formula of this project has one of its own.
    needed = f"{(1 + COMPILED_MARGIN) * asked / GIB:.1f} GiB a chip"
    assert (
        re.search(rf"stage1 vanilla does not fit: .* {re.escape(needed)}", lines) is None
    ) == fits
    assert (f"a run may take {COMPILED_MARGIN:.0%} more memory" in lines) == (not fits)


def test_what_watching_takes_is_beside_the_state(monkeypatch, tmp_path: Path):
    asked = []

    def outcome(self, program, topology):
        asked.append((type(program), program.tokens))
        # A train step holds a state of 3 GiB; a held-out loss reads 1 GiB of it, and needs 7 more.
        held_out = isinstance(program, HeldOutProgram)
        return CompilationOutcome(
            argument_bytes=(1 if held_out else 3) * GIB,
            memory_bytes=(8 if held_out else 5) * GIB,
            compile_s=1.0,
        )

    monkeypatch.setattr(Compiler, "outcome", outcome)
    words = ["stage1.batch_size=8", "intermediary.batch_size=8"]
    _, plan = made(monkeypatch, tmp_path, *words)
    assert not asked  # Nothing is watched.
    words += ["sources=[{reader: web, split: 'train[:75%]'}]"]
    words += [
        "watch={every: 5, examples: 8, sources: [{reader: web, split: 'train[75%:]'}], "
        "probe: {benchmark: chartqa, steps: 2, examples: 4}}"
    ]
    _, plan = made(monkeypatch, tmp_path, *words)
    assert set(asked) == {(HeldOutProgram, 256), (TrainProgram, 256)}  # Of all buckets the largest.
    first = plan.trainings[0]
    assert first.watch_bytes == (3 + 8 - 1) * GIB
    assert first.memory_bytes == max(first.shapes[-1].tokens * 1e8, 10 * GIB)
    assert not any(row.watch_bytes for row in plan.trainings if row.what != "pretraining")


def test_a_pretraining_in_epochs_is_counted_once_its_data_are_prepared(monkeypatch, tmp_path: Path):
    words = ["stage1.batch_size=8", "stage1.epochs=3", "intermediary.batch_size=8"]
    _, plan = made(monkeypatch, tmp_path, *words)
    assert (plan.trainings[0].steps, plan.trainings[0].chip_hours) == (None, None)
    assert "once its data are prepared" in plan.trainings[0].unknown
    _, plan = made(monkeypatch, tmp_path, *words, records={"mixture/web": 80})
    assert (plan.trainings[0].steps, plan.trainings[0].unknown) == (30, "")


SHORT = ("stage1.batch_size=8", "intermediary.batch_size=8", "num_seeds=2")
CHARTS = "transfers={chartqa: {train: {batch_size: 4, epochs: 3}}}"


def rows_named(plan, what: str):
    return [row for row in plan.trainings if row.what == what]


def test_transfers_are_counted_by_published_sizes_until_their_data_are_prepared(
    monkeypatch, tmp_path: Path
):
    _, plan = made(monkeypatch, tmp_path, *SHORT, CHARTS)
    published = BENCHMARKS["chartqa"].num_train
    rows = rows_named(plan, "transfers")
    assert [row.steps for row in rows] == [2 * round(3 * published / 4)] * len(rows)
    assert any("published sizes" in note for note in plan.notes)
    _, plan = made(monkeypatch, tmp_path, *SHORT, CHARTS, records={"chartqa/train": 40})
    parcel = next(r for r in plan.trainings if r.name == "1 transfers parcel")
    assert parcel.steps == 2 * 30
    pace = next(r for r in plan.trainings if r.name == "intermediary parcel")
    per_flop = pace.step_s[0] / sum(s.share * s.flops for s in pace.shapes)  # type: ignore[index]
    assert parcel.chip_hours
    assert parcel.chip_hours[0] == pytest.approx(parcel.flops * per_flop * 4 / 3600)
    # Its weights twice and its gradients once, over the links of one chip's two axes of 2.
    sent_s = parcel.steps * 8 * parcel.params / (4 * 45e9)  # type: ignore[operator]
    assert parcel.chip_hours[1] - parcel.chip_hours[0] == pytest.approx(4 * sent_s / 3600)


def test_part_of_a_split_has_no_published_size(monkeypatch, tmp_path: Path):
    part = "transfers={chartqa: {train_split: 'train[:10%]', train: {batch_size: 4, epochs: 3}}}"
    _, plan = made(monkeypatch, tmp_path, *SHORT, part)
    rows = rows_named(plan, "transfers")
    assert all(row.steps is None and row.chip_hours is None for row in rows)
    assert "\n".join(plan_text(plan)).count("1 that count epochs") == 1
    limited = "transfers={chartqa: {prepare: {limit: 80}, train: {batch_size: 4, epochs: 3}}}"
    _, plan = made(monkeypatch, tmp_path, *SHORT, limited)
    assert {row.steps for row in rows_named(plan, "transfers")} == {2 * 60}


def test_what_all_transfers_take_and_leave_is_a_line(monkeypatch, tmp_path: Path):
    words = [*SHORT, CHARTS, "keep={transfers: bfloat16}"]
    study, plan = made(monkeypatch, tmp_path, *words, records={"chartqa/train": 40})
    rows = rows_named(plan, "transfers")
    params = [num_params(study.model_of(method, transfer=True)) for method in study.methods]
    assert [row.written_bytes for row in rows] == [2 * 4 * count for count in params]
    low = sum(row.chip_hours[0] for row in rows if row.chip_hours)
    high = sum(row.chip_hours[1] for row in rows if row.chip_hours)
    (line,) = (line for line in plan_text(plan) if "keep.transfers: bfloat16" in line)
    assert line.startswith(f"{2 * len(rows)} transfers take {low:.0f}")
    assert low <= high
    written = sum(row.written_bytes for row in rows) / 1e12
    assert f"write {written:.2f} TB" in line
    assert f"of which {written / 2:.2f} TB stay" in line


def test_a_frozen_tower_is_not_counted_as_trained(monkeypatch, tmp_path: Path):
    def flops(freeze: str) -> float:
        words = f"transfers={{chartqa: {{train: {{total_steps: 5, freeze_vision: {freeze}}}}}}}"
        _, plan = made(monkeypatch, tmp_path, *SHORT, words)
        return rows_named(plan, "transfers")[0].flops

    study = load(overrides=[*SHORT, "transfers={chartqa: {train: {total_steps: 5}}}"])
    model = study.model_of("vanilla", transfer=True)
    train = study.fine_tuning_of("chartqa", "vanilla")
    prompt = Modality(name="", num_images=1, text_tokens=train.text_len)
    tower = prefill_flops(model, 256, prompt).vision
    assert flops("false") - flops("true") == 2 * 5 * train.batch_size * 2 * tower


def test_evaluations_are_rows_from_prefills_alone_to_answers_of_full_length(
    monkeypatch, tmp_path: Path
):
    records = {"chartqa/train": 40, "chartqa/eval": 64}
    limit = "transfers={chartqa: {eval_splits: [test_human], train: {batch_size: 4, epochs: 1}}}"
    study, plan = made(monkeypatch, tmp_path, *SHORT, limit, "budgets=[64, 256]", records=records)
    row = next(r for r in rows_named(plan, "evaluations") if r.name.endswith(" parcel"))
    model = study.model_of("parcel", transfer=True)
    decode = decode_of(study.views[0], "chartqa")
    prompt = Modality(name="", num_images=1, text_tokens=decode.text_len)
    at_64, at_256 = (prefill_flops(model, budget, prompt) for budget in (64, 256))
    # Two seeds; the tower once for both budgets.
    assert row.flops == 2 * 64 * (at_64.total + at_256.total - at_64.vision)
    assert row.steps == 2 * 2 * -(-64 // study.eval_batch_size)
    assert row.chip_hours
    assert row.steps
    # Each token waits for the cache of prompt and answer: more of it at 256 than at 64.
    tokens_s = [
        token_seconds(
            model,
            SLICE.chip,
            rows=study.eval_batch_size,
            length=budget + 2 * decode.text_len,
        )
        for budget in (64, 256)
    ]
    longest = row.steps / 2 * decode.text_len * sum(tokens_s) / 3600
    pace = next(r for r in plan.trainings if r.name == "intermediary parcel")
    per_flop = pace.step_s[0] / sum(s.share * s.flops for s in pace.shapes)  # type: ignore[index]
    assert row.chip_hours[1] == pytest.approx(row.flops * per_flop * 4 / 3600 + longest)


def test_a_video_transfer_that_its_one_gpu_has_no_memory_for_is_named(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    words = ["methods=[vanilla]", "budgets=[256]", "stage1.batch_size=8", "intermediary=null"]
    video = "transfers={msvd_qa: {train: {batch_size: 8, total_steps: 2}}}"
    words += ["compute.topology=h100:8", video]

    def notes() -> list[str]:
        plan = plan_of(load(overrides=words), tmp_path, NOTHING, day=DAY)
        return [note for note in plan.notes if note.startswith("transfer vanilla msvd_qa: ")]

    assert not notes()  # The demo's model is small: it fits.
    sizes = {"width": 2304, "depth": 26, "mlp_dim": 9216, "num_heads": 8, "head_dim": 256}
    words += [f"model.text.{name}={size}" for name, size in sizes.items()]
    words += ["transfers.msvd_qa.train.batch_size=512"]
    study = load(overrides=words)
    train = study.fine_tuning_of("msvd_qa", "vanilla")
    needed = step_bytes(
        study.model_of("vanilla", transfer=True), train, 256, num_images=8, devices=1
    )
    assert needed > 0.9 * 79.2 * GIB
    (note,) = notes()
    assert re.search(rf"512 on 1 chip .* {needed / GIB:.1f} GiB a chip", note)
    # Eight GPUs for each transfer take the same batch in larger parts.
    one = int(note.partition("microbatch: ")[2].partition(" ")[0])
    words += ["compute.gpus_per_cell=8", "compute.microbatch=auto"]
    (note,) = notes()
    assert int(note.partition("a chip computes ")[2].partition(" ")[0]) > one


def planned_rows(tmp_path: Path, *words: str):
    study = load(overrides=["methods=[vanilla]", "budgets=[256]", CHARTS, *words])
    plan = plan_of(study, tmp_path, NOTHING, day=DAY)
    return plan, {row.what: row for row in plan.trainings}


SLICE_OF_HOSTS = ("compute.topology=v4:2x2x2", "stage1.batch_size=8", "intermediary.batch_size=8")


def test_a_transfer_is_planned_on_the_chips_of_its_process_not_on_the_slice(
    tmp_path: Path, monkeypatch
):
    monkeypatch.delenv(PYTHON, raising=False)
    monkeypatch.setattr(planning, "compile_program", without_compiler)
    plan, rows = planned_rows(tmp_path, *SLICE_OF_HOSTS)
    assert {what: (row.topology, row.chips) for what, row in rows.items()} == {
        "pretraining": ("v4:2x2x2", 8),
        "transfers": ("v4:2x2x1", 4),
        "evaluations": ("v4:2x2x1", 4),
    }
    study = load(overrides=["methods=[vanilla]", "budgets=[256]", CHARTS])
    model, train = study.model_of("vanilla", transfer=True), study.fine_tunings["chartqa"]
    assert rows["transfers"].memory_bytes == step_bytes(model, train, 256, devices=4)
    # The columns of a terminal say so, too.
    cells = next(line for line in plan_text(plan) if line.startswith("1 transfers vanilla")).split()
    assert "4" in cells
    # What a FLOP takes of a chip is the same; a batch of 4 sends as much over fewer links.
    (stage,) = (row for row in plan.trainings if row.name == "intermediary vanilla")
    per_flop = [r.chip_hours[0] / r.flops for r in (stage, rows["transfers"]) if r.chip_hours]
    assert per_flop[0] == pytest.approx(per_flop[1])
    assert not [note for note in plan.notes if "is refused" in note]


def without_compiler(program, topology, compiler, *, flops, mfu):
    raise CompilerMissingError("no compiler")


def test_a_transfer_whose_batch_its_chips_do_not_divide_is_named_with_the_cure(
    tmp_path: Path, monkeypatch
):
    monkeypatch.setattr(planning, "compile_program", without_compiler)
    words = [*SLICE_OF_HOSTS, "compute.launcher=srun", "compute.processes_per_cell=2"]
    plan, rows = planned_rows(tmp_path, *words)
    assert rows["transfers"].chips == 8
    (note,) = (note for note in plan.notes if "is refused" in note)
    assert re.match(r"transfer vanilla chartqa: .* 4 .* 8 chips; .*batch_size of 8\b", note)
    assert "compute.processes_per_cell" in note
    assert not rows["transfers"].shapes
    plan, _ = planned_rows(tmp_path, *words, "transfers.chartqa.train.batch_size=16")
    assert not [note for note in plan.notes if "is refused" in note]


def test_a_pretraining_is_planned_on_the_gpus_that_it_asks_for(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(planning, "compile_program", without_compiler)
    words = ["compute.topology=h100:8", "stage1.batch_size=8", "intermediary.batch_size=8"]
    plan, _ = planned_rows(tmp_path, *words)
    assert {row.chips for row in plan.trainings} == {1}
    note = "trains on 1 of the 8 chips of h100:8; compute.gpus_per_stage and gpus_per_cell say"
    assert [n.partition(" ")[0] for n in plan.notes if note in n] == ["stage1", "intermediary"]
    words += ["compute.gpus_per_stage=8", "compute.gpus_per_cell=4"]
    plan, _ = planned_rows(tmp_path, *words)
    assert [row.chips for row in plan.trainings] == [8, 4, 4, 4]


def test_cells_that_share_a_gpu_share_its_memory_in_the_plan(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(planning, "compile_program", without_compiler)
    words = ["compute.topology=h100:1", "compute.cells_per_gpu=3"]
    _, rows = planned_rows(tmp_path, *words)
    whole = Topology.parse("h100:1").chip.program_bytes
    assert rows["transfers"].program_bytes == pytest.approx(whole / 3)
    assert rows["evaluations"].program_bytes == pytest.approx(whole / 3)


def test_answers_that_a_chip_has_no_memory_for_are_named(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(planning, "compile_program", without_compiler)
    words = ["compute.topology=v5e:1", "stage1.batch_size=8", "intermediary.batch_size=8"]

    def notes(*more: str) -> list[str]:
        plan, _ = planned_rows(tmp_path, *words, *more)
        return [note for note in plan.notes if note.startswith("evaluations vanilla do not fit")]

    assert not notes()
    sizes = {"width": 4096, "depth": 48, "mlp_dim": 16384, "num_heads": 8, "head_dim": 256}
    large = [f"model.text.{name}={size}" for name, size in sizes.items()]
    (note,) = notes(*large)
    assert "chartqa" in note
    assert "in at most 15.8 GiB" in note


def test_json_is_the_whole_plan(monkeypatch, tmp_path: Path):
    _, plan = made(monkeypatch, tmp_path, "stage1.batch_size=8", "intermediary.batch_size=8")
    told = json.loads(json.dumps(plan.as_json()))
    assert (told["form"], told["topology"], told["chips"]) == (1, "v4:2x2x1", 4)
    assert [row["name"] for row in told["trainings"]] == [row.name for row in plan.trainings]
    assert {(row["topology"], row["chips"]) for row in told["trainings"]} == {("v4:2x2x1", 4)}
    assert told["cost"] is None
    assert told["beside"] == ["42 TB stay"]
    assert told["trainings"][0]["shapes"][0]["compiled"]["compute_s"]


def test_a_batch_that_the_chips_do_not_divide_is_one_line(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"stage1\.batch_size .* 4 chips"):
        plan_of(load(overrides=[ON, "stage1.batch_size=6"]), tmp_path, NOTHING, day=DAY)


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed here"
)
def test_tpus_are_planned_by_formula_without_their_compiler(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    words = [ON, "compute.mfu=0.3", "stage1.batch_size=8", "intermediary.batch_size=8"]
    plan = plan_of(load(overrides=words), tmp_path, NOTHING, day=DAY)
    stage1 = plan.trainings[0]
    assert stage1.memory_bytes
    assert stage1.step_s
    assert stage1.step_s[0] == pytest.approx(stage1.shapes[0].flops / 4 / 275e12 / 0.3)
    # Its weights twice and its gradients once, over the links of one chip's two axes of 2.
    (shape,) = stage1.shapes
    assert shape.compiled is not None
    assert shape.compiled.traffic_bytes
    assert stage1.step_s[1] - stage1.step_s[0] == pytest.approx(
        shape.compiled.traffic_bytes / (4 * 45e9)
    )
    assert not [row.name for row in plan.trainings if row.chip_hours is None]
    (line,) = (line for line in plan_text(plan) if "libtpu is not installed" in line)
    assert re.match(r"by formula, .*\b30% .*\(--mfu\): ", line)
    assert "processes: 1 for stage1, intermediary, each transfer" in plan.notes


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed: pip install '.[tpu]'",
)
def test_a_small_model_is_compiled_for_a_slice_once(tmp_path: Path):
    words = ["methods=[vanilla]", "budgets=[256]", "stage1.batch_size=8", "intermediary=null"]
    study = load(overrides=[ON, *words])
    plan = plan_of(study, tmp_path, NOTHING, day=DAY)
    (row,) = plan.trainings[:1]
    assert row.memory_bytes
    assert 0 < row.memory_bytes < SLICE.chip.hbm_bytes
    assert row.step_s
    assert 0 < row.step_s[0] <= row.step_s[1] < 1
    (known,) = tmp_path.glob("*.json")
    wrote = known.stat().st_mtime_ns
    assert plan_of(study, tmp_path, NOTHING, day=DAY).trainings[0].step_s == row.step_s
    assert known.stat().st_mtime_ns == wrote


def test_gpus_are_planned_by_formula_without_their_compiler(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)

    def planned(mfu: float):
        words = ["compute.topology=h100:8", f"compute.mfu={mfu}"]
        words += ["compute.gpus_per_stage=8", "compute.gpus_per_cell=8"]
        words += ["stage1.batch_size=8", "intermediary.batch_size=8"]
        return plan_of(load(overrides=words), tmp_path, NOTHING, day=DAY)

    slow, fast = planned(0.2), planned(0.4)
    (note,) = (note for note in slow.notes if "by formula" in note)
    assert re.match(r"by formula, .*\b20% .*\(--mfu\): xla_cuda13", note)
    assert "pip install '.[compilers]'" in note
    for a, b in zip(slow.trainings, fast.trainings, strict=True):
        assert a.memory_bytes == b.memory_bytes
        for one, other in zip(a.shapes, b.shapes, strict=True):
            assert one.compiled is not None
            assert one.compiled.by_formula
            assert one.compute_s == pytest.approx(one.flops / 8 / 989e12 / 0.2)
            assert other.compute_s == pytest.approx(one.flops / 8 / 989e12 / 0.4)
            assert one.interconnect_s == other.interconnect_s
    assert "(0 scaled)" in "\n".join(plan_text(slow))
    assert not list(tmp_path.iterdir())


def test_a_gpus_time_is_a_formula_where_its_compiler_has_the_memory():
    class Known:
        def outcome(self, program: Any, topology: Topology) -> CompilationOutcome:
            return CompilationOutcome(
                memory_bytes=8.0, interconnect_s=0.5, traffic_bytes=3.0, compile_s=1.0
            )

    program: Any = None
    compiler: Any = Known()
    found = compile_program(program, Topology.parse("h100:8"), compiler, flops=8e15, mfu=0.5)
    assert found.compute_s == pytest.approx(1e15 / 989e12 / 0.5)
    assert (found.memory_bytes, found.interconnect_s, found.by_formula) == (8.0, 0.5, False)


def test_the_stage_that_all_methods_share_has_the_studys_microbatch(tmp_path: Path, monkeypatch):
    monkeypatch.delenv(PYTHON, raising=False)
    words = ["compute.topology=h100:1", "methods=[vanilla]", "budgets=[256]"]
    words += ["stage1.batch_size=64", "intermediary.batch_size=64"]

    def bytes_of_stages(*more: str) -> tuple[float | None, float | None]:
        plan = plan_of(load(overrides=[*words, *more]), tmp_path, NOTHING, day=DAY)
        stage1, intermediary = plan.trainings[:2]
        assert (stage1.name, intermediary.name) == ("stage1 vanilla", "intermediary vanilla")
        return stage1.memory_bytes, intermediary.memory_bytes

    whole, parts = bytes_of_stages(), bytes_of_stages("compute.microbatch=4")
    assert whole[0]
    assert parts[0]
    assert parts[0] < whole[0]
    assert parts[0] == parts[1]


def test_a_study_that_names_no_chips_has_no_plan(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"compute\.topology .* h100:8, got n"):
        plan_of(load(), tmp_path, NOTHING, day=DAY)
    with pytest.raises(ConfigError, match=r"topology .*v4, .*'v9:2'"):
        load(overrides=["compute.topology=v9:2"])


def test_a_page_has_the_lines_of_the_terminal(monkeypatch, tmp_path: Path):
    _, plan = made(monkeypatch, tmp_path, "stage1.batch_size=8", "intermediary.batch_size=8")
    title, _, _, _, *rows = plan_text(plan)
    page = plan_markdown(plan).splitlines()
    assert page[0] == title
    assert "| stage1 vanilla | 1 |" in "\n".join(page)
    told = [line.removeprefix("- ") for line in page if line.startswith("- ")]
    assert told == rows[-len(told) :]
    assert "42 TB stay" in told


def test_what_a_store_knows_is_in_the_plan(tmp_path: Path):
    found = plan_data(load(), Store(tmp_path))
    data, unknown, reading, storage = found.lines
    assert data == "data: 0 of 7 datasets are prepared"
    assert re.match(r".*preparing 7 .*\(prepare mixture/web, ", unknown)
    assert reading.startswith("reading: known once")
    assert "checkpoint" in storage
    assert found.records == {}
    nowhere = load(overrides=["data_root=/nowhere"])
    (line,) = plan_data(nowhere, Store(tmp_path)).lines
    assert re.match("storage and reading .*not known: ", line)
