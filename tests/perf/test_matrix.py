"""Tests of the compile matrix: whose programs it has, and that it goes on where it ended."""

import csv
import dataclasses
import json
import os
import re
import sys
from pathlib import Path

import pytest

from flows.plan.study_programs import study_programs
from flows.study.load import load
from infra.chips.topology import Topology
from model.chips.compiler import PYTHON, Compiler
from model.chips.outcome import CompilationOutcome
from model.chips.programs import AnswerProgram, TrainProgram
from model.chips.worker import missing_compiler
from model.train.step import declared_buckets
from perf import matrix
from perf.attention import AttentionKernel
from perf.programs import PromptProgram

SLICE = Topology.parse("h100:2")
WORDS = ["methods=[vanilla, parcel]", "budgets=[16, 256]", "stage1.batch_size=8"]
WORDS += ["transfers={chartqa: {train: {freeze_vision: true}}, msvd_qa: {}}"]


def test_a_study_has_each_program_once_with_all_its_places():
    study = load(overrides=WORDS)
    programs = study_programs(study, SLICE)
    assert len({program.program for program in programs}) == len(programs)
    names = [name for program in programs for name in program.names]
    model = study.model_of("parcel")
    assert study.intermediary is not None
    for tokens in declared_buckets(model, study.intermediary):
        assert f"intermediary parcel, {tokens} tokens" in names
    assert "transfer msvd_qa parcel, 256 x 8 tokens" in names
    assert "evaluation msvd_qa vanilla, 256 x 8 tokens" in names
    assert "spectra parcel, 16 tokens" in names
    by_name = {name: program.program for program in programs for name in program.names}
    frozen = by_name["transfer chartqa parcel, 256 tokens"]
    assert isinstance(frozen, TrainProgram)
    assert frozen.train.freeze_vision
    assert frozen.train.batch_size == study.fine_tuning_of("chartqa", "parcel").batch_size
    answers = by_name["evaluation chartqa parcel, 16 tokens"]
    assert isinstance(answers, AnswerProgram)
    assert (answers.budget, answers.rows) == (16, study.eval_batch_size)


def test_stages_that_differ_in_rates_alone_share_their_programs():
    words = ["methods=[vanilla]", "budgets=[256]", one_recipe(1e-5, 1e-6)]
    shared = study_programs(load(overrides=words), SLICE)
    (both,) = (p for p in shared if any("transfer chartqa" in name for name in p.names))
    assert any("transfer docvqa" in name for name in both.names)


def one_recipe(*rates: float) -> str:
    names = ("chartqa", "docvqa")
    recipe = "text_len: 64, batch_size: 8, label_smoothing: 0.0, dropout: 0.0, total_steps: 3"
    each = ", ".join(
        f"{name}: {{train: {{peak_lr: {rate}, {recipe}}}}}"
        for name, rate in zip(names, rates, strict=True)
    )
    return f"transfers={{{each}}}"


def test_a_row_says_by_how_much_a_program_does_not_fit():
    outcome = CompilationOutcome(
        memory_bytes=81.28 * 2**30,
        compute_s=1.5,
        interconnect_s=0.25,
        traffic_bytes=24e9,
        compile_s=99.6,
    )
    row = matrix.Row(study="s", names=("a", "b"), topology="h100:8", outcome=outcome)
    # A worker takes 0.9 of 79.2 GiB.
    assert row.cells() == [
        "s", "a (and 1 more)", "h100:8", "81.3", "no, by 10.0 GiB", "24.0", "", "100"
    ]  # fmt: skip
    # Only a TPU's compiler estimates the time.
    assert dataclasses.replace(row, topology="v4:8x8x4").cells()[6] == "1.5 + 0.25"
    refused = matrix.Row(study="s", names=("a",), topology="h100:8", error="no")
    assert refused.cells()[3:5] == ["", "no"]


def test_chips_without_a_compiler_are_skipped_with_the_reason(tmp_path: Path):
    if not missing_compiler(SLICE):
        pytest.skip("the compiler is installed here")
    with Compiler(tmp_path, sys.executable) as compiler:
        lines = list(matrix.matrix([write_config(tmp_path)], ["h100:2"], compiler))
    assert [line for line in lines if "skipped" in str(line)] == [lines[0]]
    assert "xla_cuda13 is not installed" in str(lines[0])
    assert "NumPy on the host" in str(lines[1])


def write_config(folder: Path) -> str:
    path = folder / "tiny.yaml"
    path.write_text(
        "base: demo\nname: tiny\nmethods: [vanilla, parcel]\nbudgets: [16, 256]\n"
        "stage1: {batch_size: 8}\nintermediary: {batch_size: 8}\n"
    )
    return str(path)


@pytest.mark.deep
def test_a_slice_of_the_matrix_goes_on_where_it_ended(tmp_path: Path, capsys):
    python = os.environ.get(PYTHON)
    if python is None and (reason := missing_compiler(SLICE)):
        pytest.skip(reason)
    words = ["--config", write_config(tmp_path), "--topology", "h100:2", "--json"]
    words += ["--cache", str(tmp_path / "cache"), "--only", "^(stage1|evaluation .* vanilla)"]

    def told(limit: str) -> dict[str, list]:
        matrix.main([*words, "--limit", limit])
        return json.loads(capsys.readouterr().out)

    first = told("1")
    if any("skipped" in line for line in first["lines"]):
        pytest.skip(first["lines"][0])
    assert len(first["rows"]) == 1
    assert any("not compiled yet: --limit 1" in line for line in first["lines"])
    second = told("1")
    assert len(second["rows"]) == 2
    assert first["rows"][0] in second["rows"]
    # Each kind of program has its turn.
    assert len({row["names"][0].split()[0] for row in second["rows"]}) == 2
    assert all(row["outcome"]["memory_bytes"] > 0 for row in second["rows"])


def test_chips_studies_and_kinds_of_program_take_turns(tmp_path: Path):
    config, topologies = write_config(tmp_path), ["h100:2", "v5e:2x2"]
    rows = [row for row, _ in matrix.in_turns([config], topologies, re.compile(""))]
    kinds = {row.kind for row in rows}
    assert {"stage1", "intermediary", "transfer", "evaluation", "spectra"} <= kinds
    first = [(row.kind, row.topology) for row in rows[: 2 * len(kinds)]]
    assert sorted(first) == sorted((kind, name) for kind in kinds for name in topologies)
    # All the same, a program for some chips is there once.
    assert len({(row.names, row.topology) for row in rows}) == len(rows)


def test_rows_of_a_file_are_replaced_by_program(tmp_path: Path):
    def row(tokens: int, gib: float, *settings: str) -> matrix.Row:
        outcome = CompilationOutcome(memory_bytes=gib * 2**30, compile_s=1.0)
        names = (f"stage1 parcel, {tokens} tokens",)
        return matrix.Row(
            study="s", settings=settings, names=names, topology="v4:2x2x1", outcome=outcome
        )

    path = tmp_path / "programs.csv"
    matrix.write_table(path, [row(256, 40.75), row(16, 2), row(16, 3, "model.remat=full")])
    matrix.write_table(path, [row(16, 4), row(64, 5)])
    with path.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    assert [(each["program"], each["settings"], each["GiB"]) for each in rows] == [
        ("stage1 parcel, 16 tokens", "", "4"),
        ("stage1 parcel, 64 tokens", "", "5"),
        ("stage1 parcel, 256 tokens", "", "40.75"),
        ("stage1 parcel, 16 tokens", "model.remat=full", "3"),
    ]
    assert [each["spare GiB"] for each in rows] == ["26.75", "25.75", "-10", "27.75"]
    assert {each["compute s"] for each in rows} == {""}


def test_a_program_that_is_refused_is_a_row(tmp_path: Path):
    with Compiler(tmp_path, "/bin/false") as compiler:
        rows = matrix.matrix([write_config(tmp_path)], ["h100:2"], compiler, only="^stage1")
        (row, *_) = rows
    assert isinstance(row, matrix.Row)
    assert row.outcome is None
    assert "/bin/false, ended with 1" in row.error


def test_the_accelerators_programs_are_those_of_one_gpu():
    pattern = re.compile("^(train minimal, batch 64|prefill, 1 rows), 256")
    rows = list(matrix.matrix_rows(matrix.ACCELERATOR, SLICE, re.compile("256 tokens$")))
    assert {row.topology for row, _ in rows} == {"h100:1"}
    names = [row.names[0] for row, _ in rows]
    # Two batches, two ways of computing again; two numbers of prompts; tokens.
    assert len(names) == 2 * 2 + 2 + 1
    ((_, update), (_, prefill)) = matrix.matrix_rows(matrix.ACCELERATOR, SLICE, pattern)
    assert isinstance(update, TrainProgram)
    assert (update.model.remat, update.train.batch_size, update.tokens) == ("minimal", 64, 256)
    assert isinstance(prefill, PromptProgram)
    assert (prefill.rows, prefill.budget, prefill.new_tokens) == (1, 256, 0)
    # A TPU holds no training of the 3B model.
    assert not list(matrix.matrix_rows(matrix.ACCELERATOR, Topology.parse("v4:8x8x4"), pattern))


def test_attention_is_compiled_by_every_implementation_and_shape():
    rows = list(matrix.matrix_rows(matrix.ATTENTION, SLICE, re.compile("")))
    assert len(rows) == 3 * 7
    assert {row.topology for row, _ in rows} == {"h100:1"}
    kernels = {program for _, program in rows}
    assert len(kernels) == len(rows)
    ours = next(program for row, program in rows if row.name.endswith("backward, ours"))
    assert isinstance(ours, AttentionKernel)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim, ours.cap) == (8, 4, 256, 50.0)
    tpus = Topology.parse("v4:2x2x1")
    assert {
        row.topology for row, _ in matrix.matrix_rows(matrix.ATTENTION, tpus, re.compile(""))
    } == {str(tpus)}
