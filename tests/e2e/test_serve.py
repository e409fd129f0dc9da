"""`parcel serve`: the UI's pages, a run started from its form, a schedule set there."""

import html
import json
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from flows.lookup.runs import find_run
from infra.store.store import Store
from tests.e2e.conftest import ENDLESS, Finished, Served, parcel, plain, serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def newest_run(served: Served) -> dict:
    asked = {
        "sort": "EXPECTED_START_TIME_DESC",
        "limit": 1,
        "flow_runs": {"name": {"any_": ["tiny"]}},  # Other tests run other studies on the store.
    }
    return served.ask("/flow_runs/filter", json.dumps(asked).encode())[0]


def artifact(served: Served, key: str) -> dict:
    asked = {"artifacts": {"key": {"any_": [key]}}, "sort": "CREATED_DESC", "limit": 1}
    return served.ask("/artifacts/filter", json.dumps(asked).encode())[0]


def page(served: Served, path: str) -> str:
    """One of the pages beside the UI."""
    request = urllib.request.Request(f"{served.url}/parcel/{path}", headers=served.login)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def deployment(served: Served) -> dict:
    return served.ask("/deployments/name/study/study", method="GET")


def test_run_page_reads_like_the_table(served: Served, tmp_path: Path):
    run = newest_run(served)
    assert run["name"] == "tiny"
    wanted = {"flow_runs": {"id": {"any_": [run["id"]]}}, "limit": 200}
    tasks = served.ask("/task_runs/filter", json.dumps(wanted).encode())
    names = {task["name"] for task in tasks}
    assert {"stage1 vanilla", "intermediary parcel", "prepare chartqa/train"} <= names
    assert sum(name.startswith("transfer parcel chartqa seed=") for name in names) == 2
    dom = served.browse(f"/v2/runs/flow-run/{run['id']}", tmp_path)
    assert "tiny" in plain(dom)
    assert "Completed" in plain(dom)


def test_results_matrix_is_a_page_with_links_that_lead_somewhere(served: Served, tmp_path: Path):
    found = artifact(served, "results-tiny")
    dom = served.browse(
        f"/v2/artifacts/artifact/{found['id']}",
        tmp_path,
    )
    assert "chartqa" in plain(dom)
    assert 'src="data:image/png;base64,' in dom
    links = {part.split('"')[0] for part in dom.split('href="/parcel/cell/')[1:]}
    assert len(links) >= 7
    for link in links:
        assert "What it was made from" in page(served, f"cell/{link}")
    (lineage,) = {part.split('"')[0] for part in dom.split('href="/v2/artifacts/key/lineage-')[1:]}
    assert artifact(served, f"lineage-{lineage}")["type"] == "markdown"


def test_lineage_page_draws_its_graph(served: Served, tmp_path: Path):
    results = find_run(Store(served.store), "tiny")["results"]
    found = artifact(served, f"lineage-{results}")
    dom = served.browse(
        f"/v2/artifacts/artifact/{found['id']}",
        tmp_path,
    )
    assert "<svg" in dom
    assert "stage1 vanilla" in plain(dom)


def test_pages_of_stages_and_datasets_have_samples_and_users(served: Served, tmp_path: Path):
    read = {"dataset": "prepare chartqa:test_human/eval", "checkpoint": "transfer parcel chartqa"}
    for kind, name in read.items():
        manifests = map(Path.read_text, (served.store / "manifests" / kind).glob("*.json"))
        key = next(m["key"] for m in map(json.loads, manifests) if m["name"].startswith(name))
        # A run that another test began publishes a page first, and its users when all is done.
        until = time.monotonic() + 120
        while "## Used by" not in (found := artifact(served, f"lineage-{key}"))["data"]:
            assert time.monotonic() < until, name
            time.sleep(1)
        assert "## Used by\n\n- [" in found["data"], name
        assert f"[Live page](/parcel/artifact/{key})" in found["data"]
        dom = served.browse(f"/v2/artifacts/artifact/{found['id']}", tmp_path)
        assert 2 <= dom.count('<img width="96"') <= 4, name


def test_items_are_pages_beside_the_ui(served: Served, tmp_path: Path):
    record = find_run(Store(served.store), "tiny")
    run, maker = record["run"], record["flow_run_id"]
    assert f"/v2/runs/flow-run/{maker}" in page(served, f"results/{run}")
    cell = served.browse(
        f"/parcel/cell/{run}/chartqa:test_human/parcel/16",
        tmp_path,
    )
    assert "<svg" in cell
    assert "stage1 vanilla" in plain(cell)
    items = served.browse(
        f"/parcel/items/{run}/chartqa:test_human?a=parcel@16&b=m3@16",
        tmp_path,
    )
    assert items.count('<article class="card">') >= 4
    assert "accepted" in plain(items)
    picture = html.unescape(items.split('src="/parcel/picture/')[1].split('"')[0])
    request = urllib.request.Request(f"{served.url}/parcel/picture/{picture}", headers=served.login)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.headers["content-type"].startswith("image/")
        assert "immutable" in answer.headers["cache-control"]


def test_the_start_page_and_prefects_pages_lead_to_each_other(served: Served, tmp_path: Path):
    assert "start page: http://" in (served.store.parent / "serve.log").read_text()
    start = served.browse("/parcel/", tmp_path)
    assert "complete" in plain(start)
    assert 'href="/v2/dashboard"' in start
    assert 'href="/parcel/"' in served.browse("/v2/dashboard", tmp_path)
    login = {**served.login, "Accept": "text/html"}
    request = urllib.request.Request(f"{served.url}/parcel/", headers=login)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert b'href="/parcel/" style=' not in answer.read()  # Ours need no second link.


def test_methods_are_compared_by_ticking_them(served: Served, tmp_path: Path):
    run = find_run(Store(served.store), "tiny")["run"]
    table = served.browse(f"/parcel/results/{run}", tmp_path, size=(1400, 1300))
    assert f'name="side" value="{run}/chartqa:test_human/parcel/16"' in table
    sides = "&".join(f"side={run}/chartqa:test_human/{method}/16" for method in ("parcel", "m3"))
    compared = served.browse(
        f"/parcel/compare?{sides}",
        tmp_path,
        size=(1400, 1500),
    )
    assert compared.count("<polyline") == 4
    assert "95 % interval" in plain(compared)
    methods = served.browse(f"/parcel/compare?side={run}/*/parcel&side={run}/*/m3", tmp_path)
    assert "chartqa:test_human" in plain(methods)


def ended(served: Served, run: str) -> bool:
    states = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
    return served.ask(f"/flow_runs/{run}", method="GET")["state_type"] in states


@pytest.mark.deep
def test_the_start_page_shows_a_run_and_what_a_night_left(finished: Finished, tmp_path: Path):
    store = tmp_path / "store"
    shutil.copytree(finished.store, store)
    with serving(store) as served:
        nightly = [
            {"schedule": {"cron": "0 20 * * *", "timezone": "Europe/Berlin"}, "active": True}
        ]
        found = served.ask("/deployments/name/study/study", method="GET")
        served.ask(f"/deployments/{found['id']}/schedules", json.dumps(nightly).encode())
        failing = served.start(
            "study/study", study="tiny", overrides=["name=owls", "stage1.peak_lr=1.0e30"]
        )
        until = time.monotonic() + 600
        while not ended(served, failing):
            assert time.monotonic() < until
            time.sleep(1)
        running = served.start("study/study", study="tiny", overrides=["name=rooks", ENDLESS])
        while " of 100,000" not in (text := plain(page(served, ""))) or "demo 20" not in text:
            assert time.monotonic() < until, text
            time.sleep(1)
        assert "loss " in text
        assert "the loss is nan" in text
        assert f"parcel run owls --failed --store {store}" in text
        assert "demo 20" in text  # The schedule, with its next firing.
        status = parcel(store, "status")
        assert " of 100,000, loss " in status.stdout, status.stdout + status.stderr
        cancel = json.dumps({"state": {"type": "CANCELLING"}, "force": True}).encode()
        served.ask(f"/flow_runs/{running}/set_state", cancel)
        while not ended(served, running):
            assert time.monotonic() < until
            time.sleep(1)
        # The button, as a browser sends it: what failed is tried again.
        (action,) = {
            part.split('"')[0]
            for part in page(served, "").split('action="')[1:]
            if "/owls-" in part[:80]
        }
        headers = {**served.login, "Origin": served.url, "Accept": "text/html"}
        request = urllib.request.Request(f"{served.url}{action}", b"", headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            run = served.ask(f"/flow_runs/{answer.url.rpartition('/')[2]}", method="GET")
        assert run["parameters"]["study"] == "owls"
        assert run["parameters"]["failed"] is True
        foreign = urllib.request.Request(
            f"{served.url}{action}", b"", {**served.login, "Origin": "http://evil.example"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(foreign, timeout=30)
        assert refused.value.code == 403


def test_rebuild_publishes_every_page_again(served: Served):
    done = parcel(served.store, "lineage", "rebuild")
    assert done.returncode == 0, done.stderr
    artifacts = len(list((served.store / "manifests").glob("*/*.json")))
    assert f"{artifacts + 1} pages published" in done.stdout


def test_run_started_from_the_form_finishes(served: Served):
    key = served.start("study/study", study="tiny")  # By the name under which it ran.
    run = served.ask(f"/flow_runs/{key}", method="GET")
    deadline = time.monotonic() + 300
    while run["state_type"] not in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
        assert time.monotonic() < deadline, run["state_name"]
        time.sleep(2)
        run = served.ask(f"/flow_runs/{run['id']}", method="GET")
    assert run["state_type"] == "COMPLETED", run["state"]["message"]


def refusal(served: Served, found: dict, parameters: dict) -> tuple[int, str]:
    """Returns the status code and message with which the server refuses a form."""
    import urllib.error

    path = f"/deployments/{found['id']}/create_flow_run"
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask(path, json.dumps({"parameters": parameters}).encode())
    return refused.value.code, json.loads(refused.value.read())["detail"]


def test_forms_are_short_and_refuse_what_is_wrong(served: Served, tmp_path: Path):
    found = deployment(served)
    page = f"/v2/deployments/deployment/{found['id']}/run"
    form = plain(served.browse(page, tmp_path))
    assert "Changes to the config, as key.path=value" in form
    assert "Attributes:" not in form
    assert refusal(served, found, {"until": "lunch"})[0] == 409
    code, told = refusal(served, found, {"overrides": ["num_seed=2"]})
    assert code == 409
    assert told.startswith("demo: num_seed: no such key; did you mean num_seeds?")
    assert refusal(served, found, {"study": "nobody"})[1].startswith("study must be demo, a YAML")


def test_the_sweeps_form_offers_methods_and_benchmarks(served: Served, tmp_path: Path):
    found = served.ask("/deployments/name/sweep/sweep", method="GET")
    page = f"/v2/deployments/deployment/{found['id']}/run"
    form = plain(served.browse(page, tmp_path))
    assert "Benchmarks to add to the study" in form
    code, told = refusal(served, found, {"add": {"seeds": 5, "max_seeds": 4}})
    assert (code, told) == (409, "add: seeds must be at most max_seeds=4, got 5.")


def test_cron_schedule_can_be_set(served: Served):
    schedule = [{"schedule": {"cron": "0 3 * * 1", "timezone": "UTC"}, "active": True}]
    path = f"/deployments/{deployment(served)['id']}/schedules"
    assert served.ask(path, json.dumps(schedule).encode())[0]["schedule"]["cron"] == "0 3 * * 1"


@pytest.mark.deep
def test_a_schedule_stays_when_the_server_starts_again(tmp_path: Path):
    def crons(served: Served) -> list[str]:
        return [each["schedule"]["cron"] for each in deployment(served)["schedules"]]

    weekly = [{"schedule": {"cron": "0 3 * * 1", "timezone": "UTC"}, "active": True}]
    with serving(tmp_path / "store") as served:
        path = f"/deployments/{deployment(served)['id']}/schedules"
        served.ask(path, json.dumps(weekly).encode())
        assert crons(served) == ["0 3 * * 1"]
    with serving(tmp_path / "store") as served:
        time.sleep(5)  # For the deployment to be registered again, not only to be there.
        assert crons(served) == ["0 3 * * 1"]


def test_a_foreign_page_starts_nothing(served: Served):
    path = f"/deployments/{deployment(served)['id']}/create_flow_run"
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {}):
        request = urllib.request.Request(
            f"{served.url}/api{path}",
            data=b"{}",
            headers={"content-type": "application/json", **served.login, **headers},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 403, headers


def test_another_user_of_the_machine_changes_and_starts_nothing(served: Served):
    """Who could change a deployment's steps could have any command run as its owner."""
    found = deployment(served)
    steps = [{"prefect.deployments.steps.run_shell_script": {"script": "true"}}]
    token = served.ask("/csrf-token?client=tests", method="GET")["token"]
    asked = [
        ("GET", f"/deployments/{found['id']}", {}),
        ("GET", "/csrf-token?client=other", {}),
        ("PATCH", f"/deployments/{found['id']}", {"pull_steps": steps}),
        ("POST", f"/deployments/{found['id']}/create_flow_run", {}),
        ("POST", "/block_documents/filter", {}),
    ]
    for method, path, body in asked:
        headers = {"Prefect-Csrf-Token": token, "Prefect-Csrf-Client": "tests"}
        headers |= {"content-type": "application/json"}
        request = urllib.request.Request(
            f"{served.url}/api{path}", json.dumps(body).encode(), headers, method=method
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == 401, path
    for path in ("/parcel/", "/v2/dashboard"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{served.url}{path}", timeout=30)
        assert refused.value.code == 401, path
    assert deployment(served)["pull_steps"] == found["pull_steps"]


def test_what_runs_and_the_server_wrote_for_prefect_is_its_owners_alone(served: Served):
    folder = served.store / "prefect"
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path
    assert (folder / "prefect.db").exists()


def test_the_form_takes_the_served_store_only(served: Served, tmp_path: Path):
    found = deployment(served)
    body = {"parameters": {**found["parameters"], "store": str(tmp_path / "other")}}
    with pytest.raises(urllib.error.HTTPError) as refused:
        served.ask(f"/deployments/{found['id']}/create_flow_run", json.dumps(body).encode())
    assert refused.value.code == 409
    assert not (tmp_path / "other").exists()


def test_beyond_loopback_there_must_be_an_auth_string(tmp_path: Path):
    done = parcel(tmp_path, "serve", "--host", "0.0.0.0", timeout=60)
    assert done.returncode == 2
    assert "--auth must be given with --host 0.0.0.0" in done.stderr
    assert done.stderr.count("\n") == 1
