"""Tests that the pages name only paths and links that exist, and that the reference is complete."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from docs.reference import pages as reference
from flows.study.study import StudyConfig
from tests.docs.pages import PAGES, ROOT

_PATH = re.compile(r"`((?:flows|infra|model|pipelines|perf|tests|configs|docs)/[\w./-]+)`")
_LINK = re.compile(r"\]\(([^)#\s]+)(#[\w-]+)?\)")


@pytest.mark.parametrize(
    "page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=lambda path: path.stem
)
def test_paths_and_links_lead_to_files(page: Path):
    text = page.read_text()
    if page.name != "CHANGELOG.md":  # That tells of files that were.
        for path in _PATH.findall(text):
            assert (ROOT / path).exists(), path
    generated = {f"reference/{name}.md" for name in reference.PAGES}
    for link, _ in _LINK.findall(text):
        if "://" not in link and (page.parent / link).resolve() not in {
            ROOT / "docs" / name for name in generated
        }:
            assert (page.parent / link).exists(), link


def test_links_of_the_readme_lead_to_headings():
    for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md"):
        for link, anchor in _LINK.findall((ROOT / name).read_text()):
            if anchor and "://" not in link:
                headings = re.findall(r"^#+ (.*)", (ROOT / link).read_text(), re.MULTILINE)
                assert anchor[1:] in map(slug, headings), f"{link}{anchor}"


def slug(heading: str) -> str:
    """Returns a heading's anchor, as GitHub and MkDocs make it."""
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip())


def test_the_reference_has_every_command_with_its_example():
    page = reference.cli_page()
    for words in ("run", "sweep", "plan", "data fetch", "lineage diff"):
        section = page.split(f"\n## parcel {words}\n")[1].split("\n## ")[0]
        assert f"```sh\nparcel {words} " in section
    assert "| `--add-seeds N` |" in page
    assert "| `--format tfrecord|webdataset` |".replace("|w", "\\|w") in page


def test_the_reference_lists_what_is_ours_in_the_papers_study():
    page = reference.paper_page()
    assert (
        "| `prepare.augment_resize 1, prepare.augment_jpeg 0.5, prepare.augment_crop 0.1` | "
        in page
    )
    assert page.count("\n| `") > 20
    assert "\n| `methods mqt_sa` | " in page
    assert page.count("| `prepare.encoding jpeg` |") == 1


def test_the_reference_says_of_every_key_what_it_is():
    for cls, paths in reference.config_classes().items():
        meanings = reference.attributes(cls)
        for name in cls.__dataclass_fields__:
            assert meanings.get(name), f"{paths[0]}.{name}"
    found = {path for paths in reference.config_classes().values() for path in paths}
    assert {"stage2.train", "transfers.NAME.train", "compute", "model.vision"} <= found
    page = reference.config_page()
    assert "| `seed` | `0` |  | master seed" in page
    assert "| `num_workers` |" in page
    assert reference.config_classes()[StudyConfig] == [""]


def test_the_reference_has_every_metric_reader_and_kind():
    assert "| `relaxed_accuracy` |" in reference.metrics_page()
    readers = reference.readers_page()
    assert "| `tfrecord` |" in readers
    assert "| `refcoco` |" in readers
    benchmarks = reference.benchmarks_page()
    assert (
        "| chartqa | `chartqa` | `{text}` | `48` | `always` | `relaxed_accuracy` | " in benchmarks
    )
    assert (
        "| chartqa | ChartQA (human) | `test_human` | `main` | `1250` | 224, 448 |  |" in benchmarks
    )
    assert "| chartqa | 448 | `256` | `" in benchmarks
    assert r"| mmmu |  | `{text}\n{choices}` | `768` | " in benchmarks
    artifacts = reference.artifacts_page()
    assert all(kind.files for kind in reference.KINDS.values())
    assert all(f"\n## {kind}\n" in artifacts for kind in reference.KINDS)


def test_every_benchmark_has_one_line_that_says_whose_rules_score_it():
    text = (ROOT / "docs/howto/results.md").read_text().partition("\n## Rules\n")[2]
    rows = re.findall(r"^\| `([\w ]+)` \| `?(\w*)`? ?\| `(\w+)` \| (.*) \|$", text, re.MULTILINE)
    said = [(name, *rules) for names, *rules, _ in rows for name in names.split()]
    assert sorted(said) == sorted(
        (b.name, b.metric if b.final_split or b.parent else "", b.zero_shot_metric or b.metric)
        for b in reference.BENCHMARKS.values()
    )
    # A rule is called official where answers have been compared with the official code's results.
    compared = json.loads((ROOT / "tests/model/eval/metrics/official_answers.json").read_text())
    assert {rule for _, _, rule, whose in rows if "official" in whose} <= set(compared)


def test_every_rule_names_its_source_and_the_commit():
    rules = {r for b in reference.BENCHMARKS.values() for r in (b.metric, b.zero_shot_metric) if r}
    for rule in rules:
        said = reference.METRICS[rule].score.__doc__ or ""
        assert re.search(r" at [0-9a-f]{7}\b", said), rule


def test_every_threat_names_its_test():
    text = (ROOT / "docs/explanation/threats.md").read_text()
    rows = [
        line for line in text.splitlines() if line.startswith("| ") and "| threat |" not in line
    ]
    assert len(rows) > 15
    for row in rows:
        threat, held, tests = row.strip("|").split(" | ")
        assert held.strip(), threat
        for path in tests.split(","):
            text = (ROOT / path.strip(" `")).read_text()
            assert re.search(r"^(async )?def test_", text, re.MULTILINE), path


def test_the_rooms_of_flows_stand_in_the_order_in_which_they_may_import():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (rooms,) = (c["layers"] for c in contracts["contracts"] if c.get("containers") == ["flows"])
    text = (ROOT / "docs/architecture.md").read_text()
    table = text.partition("\n## Rooms\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `flows/(\w+)` \|", table, re.MULTILINE) == rooms


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_rows_of_a_table_have_the_columns_of_its_head(page: Path):
    for table in re.findall(r"(?:^\|.*\|\n)+", page.read_text(), re.MULTILINE):
        rows = re.sub(r"`[^`]*`|\\\|", "", table).splitlines()
        assert {row.count("|") for row in rows} == {rows[0].count("|")}, table[:200]
