"""The notebook among the tutorials, as a file: `tests/e2e/test_notebook.py` runs it."""

import json
import re

import pytest

from tests.docs.pages import ROOT

NOTEBOOK = ROOT / "docs/tutorials/notebook.ipynb"


@pytest.fixture(scope="module")
def cells() -> list[dict]:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    return notebook["cells"]


def test_it_has_ids_and_no_outputs(cells: list[dict]):
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", one) for one in ids)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert code
    assert not [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]]


def test_its_links_lead_to_files(cells: list[dict]):
    text = "".join(line for cell in cells for line in cell["source"])
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if "://" not in link]
    assert links
    for link in links:
        assert (NOTEBOOK.parent / link).exists(), link
