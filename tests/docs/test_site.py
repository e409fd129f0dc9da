"""The site: it builds without a warning, and a browser that opens it asks nobody else."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.reference import pages as reference
from tests.docs.pages import ROOT
from tests.e2e.conftest import browse

pytest.importorskip("mkdocs", reason="no MkDocs: `make setup` installs it")
pytest.importorskip("material", reason="no Material for MkDocs: `make setup` installs it")

pytestmark = pytest.mark.slow

_ELEMENT = re.compile(r"<(?:script|link|img|iframe|source|video|object|embed)\b[^>]*>")
_ELSEWHERE = re.compile(r"""(?:src|href|srcset|data)=["']?(?:https?:)?//[^\s"'>]*""")
_STYLE = re.compile(r"""url\(["']?(?:https?:)?//|@import\s""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_section_has_its_pages(site: Path):
    pages = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {"index.html", "gallery.html", "measured.html"} <= pages
    assert {f"reference/{name}.html" for name in reference.PAGES} <= pages
    assert not [*site.rglob("*.py")]
    assert "parcel lineage replay" in (site / "reference/cli.html").read_text()


def test_nothing_comes_from_the_network_when_it_is_read(site: Path):
    for page in site.rglob("*.html"):
        text = page.read_text()
        loads = [e for e in _ELEMENT.findall(text) if 'rel="canonical"' not in e]
        assert not [found for e in loads for found in _ELSEWHERE.findall(e)], page
        # The theme's script would fetch Mermaid for these.
        assert 'class="mermaid"' not in text, page
    for style in site.rglob("*.css"):
        assert not _STYLE.search(style.read_text()), style
    for picture in site.rglob("*.svg"):
        assert "href=" not in picture.read_text(), picture


def test_its_search_works_from_the_disk(site: Path, tmp_path: Path):
    dom = browse(f"file://{site}/index.html?q=rejects", tmp_path)
    found = re.findall(r'class="md-search-result__link"[^>]* href="([^"]+)"', dom)
    found += re.findall(r'href="([^"]+)"[^>]* class="md-search-result__link"', dom)
    assert any("howto/data.html" in link for link in found), found
