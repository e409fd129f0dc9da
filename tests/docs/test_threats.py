"""The page on threats: each has what holds it and a test, and there are such tests."""

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "docs/explanation/threats.md").read_text()


def test_each_threat_names_what_holds_it_and_a_test_that_there_is():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines()
        if line.startswith("|") and not line.startswith("|---")
    ]
    assert all(len(row) == 3 for row in rows)
    threats = [row for row in rows if row != ["threat", "what holds it", "test"]]
    assert len(threats) > 20
    for threat, held, tests in threats:
        assert held, threat
        named = re.findall(r"`([^`]+)`", tests)
        assert ", ".join(f"`{path}`" for path in named) == tests, threat
        for path in named:
            assert re.search(r"^(async )?def test_", (ROOT / path).read_text(), re.MULTILINE), path
