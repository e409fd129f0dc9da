"""Licences that a config states, or that lie beside fetched data; those that are allowed."""

import json
from pathlib import Path

import pytest

from flows.config.licences import check_allowed
from flows.graph.datasets import datasets_of
from flows.graph.inputs import read_inputs
from flows.study.load import load
from infra.errors import ConfigError
from infra.store.digest import identity_json
from pipelines.fetch.fetch import FETCH_NOTES
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.licence import Licence
from tests.flows.graphs import checked_graph

STUDY = (
    "sources=[{reader: web, licence: CC-BY-4.0}, {reader: web, path: more}]",
    "transfers.chartqa.licence={licence: GPL-3.0, holder: Ahmed Masry, address: 'https://a.org'}",
    "licences={allow: [CC-BY-4.0, GPL-3.0]}",
)


def test_a_config_states_licences_as_texts_or_in_full():
    found = datasets_of(load(overrides=STUDY).views[0])
    assert found["mixture/web"].licence == Licence(licence="CC-BY-4.0")
    assert found["mixture/more"].licence == Licence()
    in_full = Licence(licence="GPL-3.0", holder="Ahmed Masry", address="https://a.org")
    assert found["chartqa/train"].licence == in_full
    # Evaluation splits stay whole.
    allowed = {name for name, spec in found.items() if spec.licences}
    assert {"mixture/web", "mixture/more", "chartqa/train"} <= allowed
    scored = {name for name in found if name.endswith("/eval")}
    assert scored
    assert not scored & allowed
    assert all(found[name].licence == in_full for name in scored if name.startswith("chartqa"))


def test_what_states_no_licence_has_the_identity_that_it_had():
    plain, stated = (datasets_of(load(overrides=words).views[0]) for words in ((), STUDY))
    assert "licence" not in identity_json(plain["mixture/web"])
    assert '"licence":{"licence":"CC-BY-4.0"}' in identity_json(stated["mixture/web"])


def licence(words: list[str]) -> Licence:
    """The licence of the web corpus of a study."""
    study = load(overrides=words)
    return datasets_of(study.views[0], read_inputs(study).licences)["mixture/web"].licence


def test_what_fetched_data_have_beside_them_holds_unless_the_config_says_otherwise(tmp_path: Path):
    (tmp_path / "web").mkdir()
    fetched = {"licence": "CC0-1.0", "holder": "", "address": "https://example.org"}
    notes = {"0.tar": {"licence": fetched}, "1.tar": {"licence": fetched}}
    (tmp_path / "web" / FETCH_NOTES).write_text(json.dumps(notes))
    words = [f"data_root={tmp_path}", "transfers={}", "sources=[{reader: web}]"]
    assert licence(words) == Licence(**fetched)
    words[-1] = "sources=[{reader: web, licence: MIT}]"
    assert licence(words) == Licence(licence="MIT")
    # A file without a licence is in the words, too.
    (tmp_path / "web" / FETCH_NOTES).write_text(json.dumps({**notes, "2.tar": {"sha256": ""}}))
    words[-1] = "sources=[{reader: web}]"
    found = licence(words)
    assert found.licence == "CC0-1.0; none stated"


def test_a_near_miss_names_the_licence_and_its_source():
    words = ["sources=[{reader: web, licence: CC-BY-4.0}]", STUDY[1]]
    words.append("licences={allow: ['CC BY 4.0', GPL-3.0]}")
    with pytest.raises(ConfigError, match=r"'CC BY 4\.0'.*'CC-BY-4\.0', of mixture/web"):
        checked_graph(load(overrides=words))
    check_allowed(LicencesConfig(allow=("MIT",)), [("a", Licence(licence="CC-BY-4.0"))])
    with pytest.raises(ConfigError, match=r"nearest is 'Apache-2\.0'"):
        check_allowed(LicencesConfig(allow=("Apache-2",)), [("a", Licence(licence="Apache-2.0"))])


def test_an_empty_list_and_a_wrong_key_are_refused():
    with pytest.raises(ConfigError, match="allow must name"):
        load(overrides=["licences={allow: []}"])
    with pytest.raises(ConfigError, match="owner"):
        load(overrides=["sources=[{reader: web, licence: {owner: x}}]"])
