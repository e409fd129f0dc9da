"""Lineage pages: views of the manifests."""

import base64
import re
from pathlib import Path

import pytest

from flows.pages import lineage_page
from flows.pages.page import Page
from flows.pages.record_cards import Cards
from flows.pages.run_results import study_of
from flows.pages.site import Site
from flows.steps.accepted import accept_artifact
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from pipelines.records.dataset import DESCRIPTION, OMISSIONS, REJECTS, DatasetInfo
from pipelines.records.licence import LicenceCount
from pipelines.records.schema import Omission, Reject


def make(store: Store, kind: str, name: str, **inputs: Artifact) -> Artifact:
    found = {role: artifact.as_input for role, artifact in inputs.items()}
    attempt = Attempt(store, Recipe(kind=kind, name=name, inputs=found, config={"n": name}))
    (attempt.path / "a.txt").write_text(name)
    attempt.counts["records"] = 7
    return attempt.commit({"prefect": {"flow_run_id": "0123456789"}})


def dataset_with_rejects(store: Store) -> Artifact:
    """Returns a dataset of 100 inputs, five of which are rejects for two reasons."""
    attempt = Attempt(store, Recipe(kind="dataset", name="prepare web", inputs={}, config={}))
    rejects = [
        Reject(id=f"r{n}", stage="decode", reason=f"too small: 1x{5 + n}, min_side=8", source=name)
        for n, name in enumerate(f"web/{n}.jpg" for n in range(4))
    ]
    rejects.append(Reject(id="row-7", stage="read", reason="<b> is missing", source="web/a.tsv"))
    (attempt.path / REJECTS).write_text("".join(f"{reject.to_json()}\n" for reject in rejects))
    attempt.counts.update(inputs=100, records=95, rejected=5)
    return attempt.commit({})


def test_page_tells_the_maker_links_the_inputs_and_draws_the_graph(tmp_path: Path):
    store = Store(tmp_path)
    corpus = make(store, "corpus", "corpus")
    dataset = make(store, "dataset", "prepare web", raw=corpus)
    text = lineage_page.page(store, dataset, reused=True)
    assert "**Reused**; made by run [0123456789](/v2/runs/flow-run/0123456789)" in text
    assert f"| raw | [corpus](/v2/artifacts/key/lineage-{corpus.key}) |" in text
    assert "| records | 7 |" in text
    assert '  n0["corpus"]\n  n1["prepare web"]\n  n0 --> n1' in text
    assert "Made by run" in lineage_page.page(store, dataset, reused=False)


def test_the_page_of_a_dataset_names_what_was_not_read(tmp_path: Path):
    store = Store(tmp_path)
    attempt = Attempt(store, Recipe(kind="dataset", name="prepare web", inputs={}, config={}))
    omission = Omission(source="web/b.zip", reason="no kind of file that web reads")
    (attempt.path / OMISSIONS).write_text(f"{omission.to_json()}\n")
    text = lineage_page.page(store, attempt.commit({}), reused=False)
    assert "not read: 1 x no kind of file that web reads\n  web/b.zip\n```" in text
    plain = make(store, "dataset", "prepare plain")
    assert "not read" not in lineage_page.page(store, plain, reused=False)


def test_the_pages_of_a_dataset_show_rejects_by_reason(tmp_path: Path):
    store = Store(tmp_path)
    dataset = dataset_with_rejects(store)
    text = lineage_page.page(store, dataset, reused=False)
    assert (
        "## Rejects\n\n```text\nrejected: 4 x decode: too small: …, min_side=…\n"
        "  r0: too small: 1x5, min_side=8 (web/0.jpg)\n"
    ) in text
    assert f"`parcel data rejects {dataset.key}`" in text
    live = Site(store, lambda page: None).html(Page("artifact", (dataset.key,)))
    assert "<h2>Rejects</h2>" in live
    words = " ".join(re.sub("<[^>]+>", " ", live).split())
    assert "4 decode too small: …, min_side=… r0 too small: 1x5, min_side=8 web/0.jpg" in words
    assert "1 read &lt;b&gt; is missing" in words
    assert "5 of 100 inputs" in words
    plain = make(store, "dataset", "prepare plain")
    assert "Rejects" not in lineage_page.page(store, plain, reused=False)
    assert "Rejects" not in Site(store, lambda page: None).html(Page("artifact", (plain.key,)))


def test_large_graph_shares_boxes_between_steps_of_a_sort(tmp_path: Path):
    store = Store(tmp_path)
    corpus = make(store, "corpus", "corpus")
    many = {f"x{i}": make(store, "predictions", f"evaluate {i}", raw=corpus) for i in range(30)}
    text = lineage_page.page(store, make(store, "results", "results", **many), reused=False)
    diagram = text.split("```mermaid")[1].split("```")[0]
    assert '["evaluate x 30"]' in diagram
    assert diagram.count("[") == 3


def test_pages_mark_what_was_kept_and_what_rests_on_it(tmp_path: Path):
    store = Store(tmp_path)
    corpus = make(store, "corpus", "corpus")
    dataset = make(store, "dataset", "prepare web", raw=corpus)
    top = make(store, "results", "top", data=dataset)
    assert "†" not in lineage_page.page(store, top, reused=True)
    accept_artifact(store, dataset, "0123456789abcdef" * 4)
    own, above = (lineage_page.page(store, artifact, reused=True) for artifact in (dataset, top))
    said = "kept although its code has changed since"
    assert re.search(rf"† .*{re.escape(said)}: .*`0123456789ab`", own)
    link = f"[prepare web](/v2/artifacts/key/lineage-{dataset.key})"
    assert f"† It rests on artifacts {said}: {link}." in above
    assert above.count("stroke-dasharray") == 1
    assert "†" not in lineage_page.page(store, corpus, reused=True)


@pytest.mark.slow
def test_a_page_shows_a_few_items_escaped_and_who_uses_it(toy: Store):
    cards = Cards(toy)
    data = next(a for a in toy.artifacts("dataset") if "shapes" in a.manifest.name)
    text = lineage_page.page(
        toy, data, reused=False, users={"results-x": "results"}, cards=cards.samples(data, 3)
    )
    assert text.count('<img src="data:image/jpeg;base64,') == 3
    assert "<b>segment it</b><br>[1 mask]</td>" in text
    assert "- [results](/v2/artifacts/key/lineage-results-x)" in text
    key = study_of(toy, "toy").columns("colors")["parcel@16"].artifacts[23]
    text = lineage_page.page(toy, toy.get(key), reused=False, cards=cards.samples(toy.get(key), 30))
    assert "<td>&lt;b&gt;purple&lt;/b&gt; (0)</td>" in text
    table = text.partition("<table>")[2].partition("</table>")[0]
    assert "\n\n" not in table  # An empty line would end the HTML, and begin Markdown.
    assert "Nothing yet." in lineage_page.page(toy, data, reused=False, users={})
    assert "Used by" not in lineage_page.page(toy, data, reused=False)


def test_the_page_of_a_training_has_its_losses(toy: Store):
    (training, *_) = toy.artifacts("checkpoint")
    text = lineage_page.page(toy, training, reused=False)
    picture = text.split("![loss by step](data:image/png;base64,")[1].split(")")[0]
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    (data, *_) = toy.artifacts("dataset")
    assert "![loss" not in lineage_page.page(toy, data, reused=False)


def test_licences_and_names_of_strangers_are_no_markup_on_a_page(tmp_path: Path):
    store = Store(tmp_path)
    hostile = 'a | <script>x</script> [y](javascript:z) `w`"]'
    parent = make(store, "corpus", hostile)
    attempt = Attempt(
        store, Recipe(kind="dataset", name=hostile, inputs={"raw": parent.as_input}, config={})
    )
    count = LicenceCount(licence=hostile, holder=hostile, address="javascript:z", records=0)
    info = DatasetInfo(
        name="web", parts={}, num_inputs=0, num_rejected=0, image_px=8, licences=(count,)
    )
    (attempt.path / DESCRIPTION).write_text(info.to_json())
    text = lineage_page.page(store, attempt.commit({}), reused=False)
    prose = re.sub("```json.*?```", "", text, flags=re.DOTALL)
    assert "<script>" not in prose
    assert "](javascript:" not in prose
    row = 'a &#124; &#60;script&#62;x&#60;/script&#62; &#91;y&#93;(javascript:z) &#96;w&#96;"&#93;'
    assert prose.count(row) >= 4  # Title, input, licence and holder.
    assert '["a #124; #60;script#62;' in prose  # The boxes of the graph.
