"""`parcel data check`: a table, what is missing, exit codes."""

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from flows.cli import app
from flows.config.load import ConfigError
from tests.pipelines.sources.document_layouts import write_docvqa
from tests.pipelines.sources.question_layouts import write_aokvqa
from tests.pipelines.sources.writing import put_text


@pytest.fixture
def check() -> Callable[..., tuple[int, str]]:
    def run(*words: object) -> tuple[int, str]:
        done = CliRunner().invoke(app, ["data", "check", *map(str, words)])
        if done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stdout

    return run


def test_table_lists_rows_missing_files_and_a_summary(check, tmp_path):
    write_docvqa(tmp_path)
    write_aokvqa(tmp_path)
    code, told = check("--benchmarks", tmp_path)
    assert code == 0
    lines = told.splitlines()
    docvqa = next(line for line in lines if line.startswith("DocVQA (val)"))
    assert " ".join(docvqa.split()) == (
        "DocVQA (val) docvqa val 1 of 1 1 (differs), 1 malformed 5,349 0 of 1"
    )
    assert "missing gqa/testdev_balanced_questions.json (published at cs.stanford.edu" in told
    assert lines[-1] == "3 of 47 rows can be read, 0 hold the published number"
    assert len(set(lines)) == len(lines)


def test_without_a_folder_it_says_what_is_needed(check):
    code, told = check("--benchmarks")
    assert code == 0
    assert "needs refcoco/refcoco+/refs(unc).p (published at github.com/lichengunc/refer)" in told
    assert "missing" not in told


def test_json_has_an_object_per_row(check, tmp_path):
    write_docvqa(tmp_path)
    code, told = check("--benchmarks", tmp_path, "--json")
    (row,) = [row for row in json.loads(told) if row["title"] == "DocVQA (val)"]
    assert code == 0
    assert (row["found"], row["num"], row["as_published"]) == (True, 1, False)


def test_damaged_file_fails(check, tmp_path):
    put_text(tmp_path / "docvqa/val_v1.0.json", "[]")
    code, told = check("--benchmarks", tmp_path)
    assert code == 1
    assert "unreadable docvqa val: " in told
    assert "val_v1.0.json must hold a list under 'data'" in told


def test_wrong_requests_are_refused(check, tmp_path):
    with pytest.raises(ConfigError, match="--benchmarks is what there is"):
        check(tmp_path)
    with pytest.raises(ConfigError, match=r"data_root must be a folder, got .*nowhere"):
        check("--benchmarks", tmp_path / "nowhere")
