"""Files at the root that others' tools read: the citation and the workflow."""

import os
import re
import tomllib

import yaml

from tests.docs.pages import ROOT


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def assert_authors(authors: list[dict]) -> None:
    """Persons have both names, and others one: what CFF 1.2.0 accepts."""
    assert authors
    for author in authors:
        assert author.keys() in ({"name"}, {"family-names", "given-names"}), author


def test_the_citation_names_this_version_and_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "authors"}
    assert required <= citation.keys()
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert_authors(citation["authors"])
    assert (citation["version"], citation["license"]) == (
        project()["version"],
        project()["license"],
    )
    released = (ROOT / "CHANGELOG.md").read_text()
    day, month, year = re.search(
        rf"^## {citation['version']} \((\d+) (\w+) (\d+)\)", released, re.M
    ).groups()
    months = ["January", "February", "March", "April", "May", "June", "July", "August", "September"]
    months += ["October", "November", "December"]
    date = f"{year}-{months.index(month) + 1:02d}-{int(day):02d}"
    assert citation["date-released"] == date
    (paper,) = citation["references"]
    assert {"type", "title", "authors"} <= paper.keys()
    assert_authors(paper["authors"])
    assert (paper["authors"][0]["family-names"], paper["year"]) == ("Kuzucu", 2026)
    assert paper["identifiers"][0]["value"] == "arXiv:2605.30126"
    assert paper["title"].startswith("PARCEL: Pool-Anchored Resampling")


def test_the_workflow_runs_what_continuous_integration_runs_everywhere():
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"] == 90
    steps = job["steps"]
    assert steps[0]["uses"].startswith("actions/checkout@")
    assert steps[0]["with"]["fetch-depth"] == 1
    python = next(
        step["with"]["python-version"] for step in steps if "python" in step.get("uses", "")
    )
    assert job["env"]["PYTHON"] == f"python{python}" == "python3.11"
    assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
