"""The live pages of a store: what they show, how they are linked, and what they refuse."""

import html
import io
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from flows.pages.app import store_pages
from flows.pages.curves import thinned
from flows.pages.history_drawing import UsageIndex
from flows.pages.item_scores import Reader
from flows.pages.run_results import study_of
from flows.report.cells import Plan
from flows.report.plot import COLORS
from infra.prefect.server import PAGES
from infra.store.store import Store
from model.masks.codec import MaskCodec, init_params
from model.masks.config import MaskCodecConfig
from tests.flows.pages.studies import RUN, commit, write_study


@pytest.fixture(scope="module")
def client(toy: Store) -> TestClient:
    return TestClient(Starlette(routes=[Mount(PAGES, store_pages(toy.uri))]))


def get(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, (path, answer.text[-600:])
    return answer.text


def links(text: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r'(?:href|src|action)="([^"]+)"', text)]


def told(text: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


@pytest.mark.slow
def test_every_link_of_every_page_leads_somewhere(client: TestClient):
    waiting, seen = [f"{PAGES}/"], set()
    while waiting:
        path = waiting.pop()
        if path in seen or not path.startswith(PAGES):
            continue
        seen.add(path)
        answer = client.get(path)
        assert answer.status_code == 200, path
        if answer.headers["content-type"].startswith("text/html"):
            waiting += links(answer.text)
    kinds = {path.removeprefix(f"{PAGES}/").partition("/")[0].partition("?")[0] for path in seen}
    assert kinds == {
        "", "runs", "results", "curves", "cell", "items", "item", "compare", "artifact", "seen",
        "picture", "mask", "plot", "style", "script",
    }  # fmt: skip
    assert sum("/item/" in path for path in seen) == 60


def test_each_cell_of_the_table_links_to_all_its_seeds(client: TestClient, toy: Store):
    table = get(client, f"{PAGES}/results/toy")
    assert "Methods and budgets compared difference @16 " in told(table)
    assert {one for one in links(table) if "/plot/" in one} == {
        f"{PAGES}/plot/{study_of(toy, 'toy').results.key}?of=pareto"
    }
    cells = [link for link in links(table) if "/cell/" in link]
    assert len(cells) == 2 * (1 + 2 + 2)
    text = get(client, next(link for link in cells if link.endswith("colors/parcel/16")))
    # Its seeds agree, and all items are of one picture: nothing says how far others would be.
    assert "3 of 3 seeds from 1 pretraining" in told(text)
    assert "95 % interval" not in told(text)
    keys = study_of(toy, "toy").columns("colors")["parcel@16"].artifacts
    assert set(keys) == {11, 23, 47}
    for key in keys.values():
        assert f"{PAGES}/artifact/{key}" in links(text)
    assert "prepare colors/test" in text  # In the drawing of what it was made from.


def test_an_item_shows_its_picture_and_what_each_seed_wrote(client: TestClient):
    text = get(client, f"{PAGES}/item/toy/colors?id=colors/003")
    assert "which color?" in told(text)
    assert told(text).count("<b>purple</b>") == 5  # Escaped: it is shown, and is no markup.
    assert "<b>purple" not in text
    (picture,) = [link for link in links(text) if "/picture/" in link]
    assert client.get(picture).headers["content-type"] == "image/png"


def test_boxes_are_drawn_and_numbered_and_the_accepted_one_is_the_first(client: TestClient):
    text = get(client, f"{PAGES}/item/toy/shapes?id=segment/001")
    assert "accepted [1 mask]" in told(text)
    assert "[2]" in told(text)
    assert text.count("<rect ") == 2


def test_masks_lie_over_the_picture_a_records_own_and_those_that_were_written(client: TestClient):
    text = get(client, f"{PAGES}/item/toy/shapes?id=segment/001")
    own, written = [link for link in links(text) if "/mask/" in link]
    places = re.findall(r'<image x="(.+?)" y="(.+?)" width="(.+?)" height="(.+?)"', text)
    assert places[0] == ("0", "0", "1000", "1000")
    # Rows 4 to 12 and columns 8 to 23 of 32.
    assert [float(side) for side in places[1]] == pytest.approx([250, 125, 500, 281], abs=2)
    with Image.open(io.BytesIO(client.get(own).content)) as veil:
        hidden = np.asarray(veil.convert("RGBA"))[..., 3] > 0
    expected = np.zeros((32, 32), bool)
    expected[4:13, 8:24] = True
    np.testing.assert_array_equal(hidden, expected)
    with Image.open(io.BytesIO(client.get(written).content)) as veil:
        hidden = np.asarray(veil.convert("RGBA"))[..., 3] > 0
    codec = MaskCodec(init_params(MaskCodecConfig(width=8), 2))
    np.testing.assert_array_equal(hidden, codec.decode(list(range(3, 19))) > 0)
    assert 0 < hidden.sum() < hidden.size


def test_lists_are_right_wrong_or_changed_between_two(client: TestClient, toy: Store):
    study = study_of(toy, "toy")
    columns = study.columns("colors")
    chosen = [columns["parcel@16"], columns["mqt@16"]]
    reader = Reader(toy)
    every = reader.items(chosen, "all", "")
    right, wrong = (reader.items(chosen, show, "") for show in ("right", "wrong"))
    changed = reader.items(chosen, "changed", "")
    assert sorted(i.id for i in (*right, *wrong)) == [i.id for i in every]
    assert {i.id for i in changed} == {
        i.id for i in every if (i.scores[0] < 0.5) != (i.scores[1] < 0.5)
    }
    assert changed
    text = get(client, f"{PAGES}/items/toy/colors?a=parcel@16&b=mqt@16&show=changed")
    shown = re.findall(r"id=(colors%2F\d+)", text)
    assert len(set(shown)) == len(changed)
    assert re.search(rf"\b{len(changed)} items, .*parcel@16 and mqt@16", told(text))
    found = get(client, f"{PAGES}/items/toy/colors?find=/01")
    assert set(re.findall(r"id=colors%2F(\d\d)", found)) == {"01"}


def test_items_are_right_with_one_alone_or_contain_a_text_or_are_of_a_type(
    client: TestClient, toy: Store
):
    columns = study_of(toy, "toy").columns("colors")
    chosen = [columns["parcel@16"], columns["mqt@16"]]
    reader = Reader(toy)
    first, second = (reader.items(chosen, show, "") for show in ("only-a", "only-b"))
    assert all(one.scores[0] > 0.5 > one.scores[1] for one in first)
    assert all(one.scores[1] > 0.5 > one.scores[0] for one in second)
    assert {i.id for i in (*first, *second)} == {i.id for i in reader.items(chosen, "changed", "")}
    assert second
    # parcel wrote "purple" for every third item with one of three seeds; no question has it.
    wrote = reader.items(chosen[:1], "all", "PURPLE")
    rows = {item: [*reader.rows(chosen[0], item)] for item in reader.types(chosen[0])}
    assert {i.id for i in wrote} == {
        item for item, told in rows.items() if any("purple" in r["prediction"] for _, r in told)
    }
    assert 0 < len(wrote) < len(reader.items(chosen[:1], "all", "which color")) == 30
    assert len(reader.items(chosen, "all", "", "which")) == 30
    text = get(client, f"{PAGES}/items/toy/colors?a=parcel@16&b=mqt@16&show=only-b&find=purple")
    shown = {one for one in links(text) if "/item/" in one}
    assert len(shown) == len(reader.items(chosen, "only-b", "purple")) > 0
    assert "mqt@16 right, parcel@16 wrong" in told(text)


def test_one_row_is_found_without_reading_the_others(toy: Store):
    key = study_of(toy, "toy").columns("shapes")["mqt@64"].artifacts[23]
    items = Reader(toy).file(key)
    (ids,) = items.columns("id")
    assert [items.row(item)["id"] for item in ids] == ids  # type: ignore[index]
    for absent in ("", "segment/0005", "zzz"):
        assert items.row(absent) is None


def test_samples_are_rows_from_all_over_a_file(toy: Store):
    key = study_of(toy, "toy").columns("shapes")["mqt@64"].artifacts[23]
    items = Reader(toy).file(key)
    (every,) = items.columns("id")
    for limit in (1, 4, 7, 30, 99):
        found = [row["id"] for row in items.spread(limit)]
        assert found == sorted(set(found))
        assert len(found) == min(limit, 30)
        assert found[0] == every[0]
    assert every.index([row["id"] for row in items.spread(4)][-1]) >= 20


def test_a_dataset_shows_a_few_records_and_who_uses_it(client: TestClient, toy: Store):
    key = next(a.key for a in toy.artifacts("dataset") if "colors" in a.manifest.name)
    text = get(client, f"{PAGES}/artifact/{key}")
    assert text.count('<article class="card">') == 8
    users = told(text).partition("Used by")[2]
    assert "transfer parcel colors seed=23" in users
    assert "evaluate colors/mqt/64/47" in users
    assert "shapes" not in users


def test_users_of_one_name_are_listed_with_when_each_was_made(tmp_path: Path):
    store = Store(str(tmp_path / "store"))
    raw = commit(store, "corpus", "raw", {})
    rates = [commit(store, "corpus", name, {}) for name in ("slow", "fast")]
    twins = [commit(store, "corpus", "clean", {}, raw=raw, rate=rate) for rate in rates]
    commit(store, "corpus", "count", {}, raw=raw)
    client = TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))
    users = told(get(client, f"{PAGES}/artifact/{raw.key}")).partition("Used by")[2]
    for twin in twins:
        made = twin.manifest.started[:19].replace("T", " ")
        assert f"clean, made {made} UTC as …{twin.key.rpartition('-')[2]}" in users
    assert "count, made" not in users


def test_a_training_shows_its_losses_and_how_it_did_on_held_out_records(
    client: TestClient, toy: Store
):
    page = get(client, f"{PAGES}/artifact/{toy.keys('checkpoint')[0]}")
    charts = re.findall(r'<figure class="chart">.*?</figure>', page, re.S)
    titles = [re.sub(r"<[^>]*>", " ", c.partition("</figcaption>")[0]).split() for c in charts]
    assert [" ".join(title) for title in titles] == [
        "loss by step",
        "loss on held-out records by step 16 tokens 64 tokens",
        "score of the probe by step 16 tokens 64 tokens",
    ]
    lines = [re.findall(r'points="(.*?)"', chart) for chart in charts]
    assert [len(of) for of in lines] == [1, 2, 2]
    points = [tuple(map(float, point.split(","))) for point in lines[0][0].split()]
    assert points == sorted(points)  # It falls: y grows downwards.
    assert "loss: 5 at step 1" in charts[0]
    data = next(a.key for a in toy.artifacts("dataset"))
    assert client.get(f"{PAGES}/plot/{data}?of=loss").status_code == 404
    assert "<figure" not in get(client, f"{PAGES}/artifact/{data}")


def test_long_trainings_are_drawn_by_means():
    points = thinned([(step, float(step % 2)) for step in range(1, 2001)])
    assert len(points) == 400
    assert points[0] == (3.0, 0.6)
    assert thinned([]) == []


def test_what_differs_between_two_cells_is_a_page(client: TestClient):
    asked = f"{PAGES}/diff?a=toy/colors/parcel/16&b=toy/colors/mqt/16"
    text = told(get(client, asked))
    assert "Their contents differ." in text
    assert "config name transfer parcel colors seed=11 transfer mqt colors seed=11" in text
    same = told(get(client, f"{PAGES}/diff?a=toy/colors/parcel/16&b=toy/colors/parcel/16"))
    assert re.search(r"contents are the same\. Nothing differs", same)


def test_an_item_leads_up_to_the_cells_that_rest_on_it(client: TestClient):
    item = get(client, f"{PAGES}/item/toy/colors?id=colors/003")
    (path,) = [link for link in links(item) if "/seen/" in link]
    text = get(client, path)
    assert "15 of 30: scored on it" in told(text)
    assert any(link.endswith("/colors/mqt/64") for link in links(text))


def test_a_page_of_prefects_leads_on_to_ours_about_the_same(toy: Store):
    run, key = study_of(toy, "toy").run, next(toy.artifacts("scores")).key
    trained = next(toy.artifacts("checkpoint")).key
    asked = {
        ("task-run", "1"): [f"progress-{key}", f"lineage-{key}", f"lineage-{trained}"],
        ("artifact", "2"): [f"lineage-{key}"],
    }
    app = store_pages(toy.uri, ui_keys=lambda *of: asked.get(of, []))
    client = TestClient(app, follow_redirects=False)
    under_way = "checkpoint-0123456789abcdef-01234567"
    for shown, ours in {
        f"/v2/runs/flow-run/{RUN}?tab=Logs": f"results/{run}",
        "/v2/runs/flow-run/another": "",
        "/v2/runs/task-run/1": f"artifact/{trained}",
        "/v2/runs/task-run/3": "",
        "/v2/artifacts/artifact/2": f"artifact/{key}",
        f"/v2/artifacts/key/lineage-{key}": f"artifact/{key}",
        f"/v2/artifacts/key/progress-{under_way}": f"artifact/{under_way}",
        "/v2/artifacts/key/progress-dataset-0123456789abcdef-01234567": "",
        "/v2/artifacts/key/lineage-%2e%2e": "",
        "/v2/artifacts/key/results-toy": "results/toy",
        "/v2/artifacts/key/explain-toy": "runs?study=toy",
        "/v2/artifacts/key/mine": "",
        "/v2/dashboard": "",
    }.items():
        answer = client.get("/about", headers={"referer": f"http://testserver{shown}"})
        assert (answer.status_code, answer.headers["location"]) == (303, f"{PAGES}/{ours}"), shown
    assert client.get("/about").headers["location"] == f"{PAGES}/"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("results/nope", "RUN must name a finished run, got 'nope'"),
        ("results/..%2f..%2fsecret", "RUN must be letters"),
        ("cell/toy/colors/parcel/99", "colors of toy-"),
        ("items/toy/nope", "has no row 'nope'. It has: colors, shapes."),
        ("items/toy/colors?show=changed", "changed, only-a, only-b need two columns"),
        ("items/toy/colors?type=why", "type must be one of which, got 'why'"),
        ("runs?as=svg", "as must be one of csv, tex, parquet, got 'svg'"),
        ("results/toy?of=pareto&as=csv", "as must be one of png, svg, pdf, got 'csv'"),
        ("start?as=csv", "The page 'start' has no files."),
        ("item/toy/colors?id=nope", "has no item 'nope'"),
        ("artifact/..%2f..%2fetc", "key must be"),
        ("artifact/corpus-0123456789abcdef-", "no artifact corpus-0123456789abcdef-"),
        ("diff?a=toy/colors/parcel/16&b=no", "RUN must name a finished run, got 'no'"),
        ("seen/toy?id=nope", "got 'nope', which none of the datasets of"),
        ("picture/..%2f..%2fstore.json", "There is no such picture"),
        ("cell/toy", "There is no page 'cell/toy'"),
        ("<script>alert(1)</script>", "There is no page"),
    ],
)
def test_what_is_not_there_is_said_in_a_page(client: TestClient, path: str, said: str):
    answer = client.get(f"{PAGES}/{path}")
    assert answer.status_code == 404
    assert said in told(answer.text)
    assert "<script>" not in answer.text


def test_pages_load_nothing_from_elsewhere_and_run_one_script_of_ours(client: TestClient):
    for path in ("results/toy", "items/toy/colors", "item/toy/colors?id=colors/001"):
        answer = client.get(f"{PAGES}/{path}")
        rules = answer.headers["content-security-policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in rules
        assert "unsafe" not in rules
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert re.findall("<script.*", answer.text) == [
            f'<script src="{PAGES}/script" defer></script>'
        ]
        assert "style=" not in answer.text
        assert not [
            link for link in links(answer.text) if not link.startswith(("/parcel/", "/v2/"))
        ]


@pytest.mark.slow
def test_a_picture_whose_dataset_is_gone_is_said(tmp_path: Path):
    store = Store(tmp_path)
    write_study(store, benchmarks=("colors",), methods=("vanilla",), budgets=(16,), num_items=3)
    (data,) = store.artifacts("dataset")
    shutil.rmtree(data.path)
    pages = TestClient(store_pages(store.uri))
    text = get(pages, "/item/toy/colors?id=colors/001")
    assert "its record is not in the store" in told(text)
    assert pages.get(f"/picture/{data.key}?id=colors/001").status_code == 404
    assert "A few of it" not in get(pages, f"/artifact/{data.key}")
    for kind in ("predictions", "scores"):
        (answers,) = (one for one in store.artifacts(kind) if one.manifest.name.endswith("11"))
        assert "A few of it" in get(pages, f"/artifact/{answers.key}")
        shutil.rmtree(answers.path)
        assert "A few of it" not in get(pages, f"/artifact/{answers.key}")


@pytest.mark.slow
def test_a_store_in_a_bucket_has_the_same_pages(gcs, tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    store = Store("gs://testing/pages")
    write_study(store, benchmarks=("shapes",), methods=("vanilla",), budgets=(16,), num_items=3)
    pages = TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))
    text = get(pages, f"{PAGES}/item/toy/shapes?id=segment/001")
    assert "accepted [1 mask]" in told(text)
    (picture,) = [link for link in links(text) if "/picture/" in link]
    assert pages.get(picture).content.startswith(b"\x89PNG")
    (data,) = store.artifacts("dataset")
    assert "evaluate shapes/vanilla/16/47" in get(pages, f"{PAGES}/artifact/{data.key}")


def test_users_are_those_there_are_now(tmp_path: Path):
    store = Store(tmp_path)
    corpus = commit(store, "corpus", "corpus", {})
    uses = UsageIndex(store)
    assert uses.of(corpus.key) == {}
    later = [commit(store, "files", name, {}, raw=corpus) for name in ("b", "a")]
    assert list(uses.of(corpus.key).values()) == ["a", "b"]
    store.files.remove(f"manifests/files/{later[0].key}.json")
    assert list(uses.of(corpus.key).values()) == ["a"]


@pytest.mark.slow
def test_a_table_of_two_resolutions_has_pages_for_both(tmp_path: Path):
    store = Store(tmp_path / "store")
    high = Plan(
        methods=("vanilla", "parcel"),
        benchmarks=("colors@448", "shapes@448"),
        budgets=(64, 256),
        seeds=(11,),
        resolution=448,
    )
    write_study(store, name="two", benchmarks=("colors", "shapes"), also=(high,))
    client = TestClient(Starlette(routes=[Mount(PAGES, store_pages(store.uri))]))
    table = get(client, f"{PAGES}/results/two")
    text = told(table)
    assert "Over benchmarks (224 px) over rows method" in text
    assert "Over benchmarks (448 px) over rows method" in text
    assert "Methods and budgets compared (448 px) difference @64 @256 " in text
    cells = [link for link in links(table) if "/cell/" in link]
    assert len(cells) == 2 * (1 + 2 + 2) + 2 * (1 + 2)
    for cell in cells:
        if "448" in cell:
            page = get(client, cell)
            items = next(link for link in links(page) if "/items/" in link)
            assert "item by item" in told(get(client, items))


@pytest.mark.parametrize("kind", ["results", "curves", "cell", "items", "item", "seen", "artifact"])
@pytest.mark.parametrize("name", ["a" * 5000, "é" * 200, "x" * 256])
def test_a_name_that_is_too_long_is_no_page(toy: Store, kind: str, name: str):
    client = TestClient(store_pages(toy.uri), base_url="http://127.0.0.1")
    for parts in range(1, 5):
        path = "/".join([name] * parts)
        assert client.get(f"/{kind}/{path}").status_code == 404, parts


def test_a_method_has_the_color_of_the_figures_in_every_chart_and_table(client: TestClient):
    style = client.get(f"{PAGES}/style").text
    colors = dict(re.findall(r"\.(color\d) \{ --own: (#\w+) \}", style))
    assert [*colors.values()] == [*COLORS]
    text = get(client, f"{PAGES}/results/toy")
    found: dict[str, set[str]] = {}
    for name, method in re.findall(r'class="swatch (\w+)[^"]*"></span>(\w+)', text):
        found.setdefault(method, set()).add(name)
    for name, label in re.findall(r'class="\w+ (\w+) dash\d".*?<title>([^<]+)', text):
        method = label.removeprefix("transfer ").partition(" ")[0].partition("@")[0]
        found[method].add(name)
    assert found == {"vanilla": {"reference"}, "parcel": {"color0"}, "mqt": {"color1"}}
    # The seeds of a method have patterns of their own, and their own points.
    assert set(re.findall(r'<polyline class="loss color0 (dash\d)"', text)) == {
        "dash0", "dash1", "dash2",
    }  # fmt: skip
    assert "<title>parcel@16, seed 23: 66.7</title>" in text
