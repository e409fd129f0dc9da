"""The commands of the documentation, on the small study instead of those that they name."""

import json
import re
import shlex
from pathlib import Path

import pytest

from flows.steps.registry import KINDS
from infra.store.store import Store
from tests.docs.pages import ROOT, commands
from tests.docs.test_commands import parcel_words
from tests.e2e.conftest import CONFIG, Finished, run_all

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.usefixtures("one_server")]

ROW = "chartqa:test_human"
STUDIES = ("charts", "demo", "easy-vqa", "first", "first-day", "mine", "small-scale", "wider")
CONFIGS = ("mine.yaml", "study.yaml", "CONFIG")
WALKED = {
    f"docs/tutorials/{name}.md"
    for name in ("own_connector", "own_images", "own_step", "published_benchmark")
}
"""Pages whose commands are run line by line, by test_tutorials.py and the tests of own_…"""
READ = re.compile(
    r"data fetch .*(--dry-run|--list)|data show .*|flops.*|gc|plan .*(h100|first_day).*|status"
    r"|results (?!.*--predictions).*"
    r"|lineage (diff|export|rebuild|show|trace|verify).*"
)
"""Commands that need no more than a finished study."""
EXPLAINED = re.compile(r"(run|sweep) (?!.*(--cron|gs://lab/raw|first_day)).*")
"""Commands whose plan a finished study is enough for; test_tutorials.py explains a first day."""


def documented(which: re.Pattern[str], store: Path, sample: str) -> list[list[str]]:
    """Returns the words of the pages' commands of a sort, as the small study takes them."""
    opened = Store(store)
    found = [
        parcel_words(command) for command, pages in commands().items() if not {*pages} <= WALKED
    ]
    chosen = [words for words in found if words and which.fullmatch(" ".join(words))]
    small = (on_the_small_study(words, opened, sample) for words in chosen)
    return [[*words] for words in dict.fromkeys(tuple(words) for words in small)]


def on_the_small_study(words: list[str], store: Store, sample: str) -> list[str]:
    """Returns the words of a command with what the small study has in place of what they name."""
    replaced = []
    for word in words:
        word = re.sub(r"(?<![\w.])(?:chartqa|mine)/(\w+)/(?:16|64)", rf"{ROW}/\1/16", word)
        word = re.sub(rf"^({'|'.join(STUDIES)})(?=/|$)", "tiny", word)
        if found := re.fullmatch(r"(dataset|checkpoint|results)-[0-9a-f]{4}", word):
            made = {a.manifest.name: a.key for a in store.artifacts(found[1])}
            word = made.get("prepare mixture/web") or next(iter(made.values()))
        if word in CONFIGS:
            word = CONFIG
        if word == "web/000017.jpg":
            word = sample
        replaced.append(word.replace("http://head:8265", "http://127.0.0.1:8265"))
    for option in ("--store", "--price"):
        if option in replaced and replaced[0] == "run":
            del replaced[replaced.index(option) : replaced.index(option) + 2]
    return replaced


def sample_of(finished: Finished) -> str:
    """Returns the id of a record that was answered."""
    predictions = next(iter(Store(finished.store).artifacts("predictions")))
    return json.loads((predictions.path / "predictions.jsonl").open().readline())["id"]


def test_commands_run_on_a_small_study(finished: Finished, tmp_path: Path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    asked = documented(READ, finished.store, sample_of(finished))
    assert len(asked) > 20
    for done in run_all(asked, finished.store, tmp_path):
        assert done.returncode == 0, f"parcel {shlex.join(done.args)}\n{done.stderr}"
        assert (done.stdout + done.stderr).strip(), done.args


def test_runs_are_explained(finished: Finished, tmp_path: Path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    asked = documented(EXPLAINED, finished.store, sample_of(finished))
    asked = [[*words, *(["--explain"] if "--explain" not in words else [])] for words in asked]
    assert len(asked) > 12
    before = {artifact.key for artifact in Store(finished.store).artifacts()}
    for done in run_all(asked, finished.store, tmp_path):
        assert done.returncode == 0, f"parcel {shlex.join(done.args)}\n{done.stderr}"
        assert re.search(r"\d+ steps: |nothing to run|is there", done.stdout), done
    assert {artifact.key for artifact in Store(finished.store).artifacts()} == before


def test_the_reference_names_every_file_of_an_artifact(finished: Finished):
    for artifact in Store(finished.store).artifacts():
        kind, known = artifact.manifest.kind, KINDS[artifact.manifest.kind].files
        for name in artifact.manifest.files:
            patterns = [re.escape(pattern).replace(r"\*", ".*") for pattern in known]
            assert any(re.fullmatch(pattern, name) for pattern in patterns), (kind, name)
