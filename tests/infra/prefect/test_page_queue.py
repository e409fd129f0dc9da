"""Pages leave a run by a queue: to a server that takes them, and past one that does not."""

import socket
import time
import uuid

import pytest

from infra.prefect import best_effort as best_effort_module
from tests.infra.prefect.test_rows import new_row, new_run

pytestmark = pytest.mark.slow


@pytest.mark.usefixtures("served_store")
def test_pages_are_published_in_order_and_progress_in_place():
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from infra.prefect.page_queue import PageQueue, UIPage

    run = new_run("pages")
    row = new_row(run, "train", Running())
    with PageQueue(run) as pages:
        pages.put(UIPage(key="explain-toy", text="# before", description="Before the run"))
        pages.put(UIPage(key="lineage-a", text="# a", description="train", task_run_id=row))
        for percent in (10.0, 20.0, 30.0):
            pages.put_progress(
                UIPage(key="progress-a", text=percent, description="train", task_run_id=row)
            )
            time.sleep(0.2)
    of_run = {"flow_runs": {"id": {"any_": [run]}}}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json=of_run).json()
    assert {(page["key"], page["type"], page["data"], page["task_run_id"]) for page in found} == {
        ("explain-toy", "markdown", "# before", None),
        ("lineage-a", "markdown", "# a", row),
        ("progress-a", "progress", 30.0, row),
    }


@pytest.mark.usefixtures("served_store")
@pytest.mark.parametrize("path", ["/artifacts/bulk", "/artifacts/of/another/server"])
def test_pages_that_wait_share_a_request_where_the_server_takes_them_so(
    monkeypatch: pytest.MonkeyPatch, path: str
):
    from prefect.client.orchestration import SyncPrefectClient, get_client

    from infra.prefect import page_queue

    run, paths, request = new_run("pages"), list[str](), SyncPrefectClient.request

    def noted(self: SyncPrefectClient, method: str, path: str, **values: object) -> object:
        paths.append(path)
        return request(self, method, path, **values)  # type: ignore[arg-type]

    pages = page_queue.PageQueue(run)
    wanted = {f"lineage-{number}": f"# {number}" for number in range(40)}
    for key, text in wanted.items():  # Before its thread begins: all of them wait.
        pages.put(page_queue.UIPage(key=key, text=text, description="a step"))
    with monkeypatch.context() as patched:
        patched.setattr(page_queue, "TOGETHER", path)
        patched.setattr(SyncPrefectClient, "request", noted)
        with pages:
            pass
    assert [paths.count(path), paths.count("/artifacts/")] == (
        [3, 0] if "bulk" in path else [1, 40]
    )
    of_run = {"flow_runs": {"id": {"any_": [run]}}}
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json=of_run).json()
        newest = client.request(
            "GET", "/artifacts/{key}/latest", path_params={"key": "lineage-39"}
        ).json()
    assert {page["key"]: page["data"] for page in found} == wanted
    assert newest["data"] == "# 39"
    assert len({page["id"] for page in found}) == len(found) == 40


@pytest.mark.usefixtures("served_store")
def test_pages_are_published_without_events():
    from prefect.client.orchestration import get_client
    from prefect.events import emit_event

    from infra.prefect.page_queue import PageQueue, UIPage
    from infra.prefect.rows import wait_for_events

    what = "published without events"
    pages = PageQueue(new_run("pages"))
    for key in ("lineage-c", "lineage-d"):  # Two in one request.
        pages.put(UIPage(key=key, text="# c", description=what))
    with pages:
        for text in ("# a", "# a, again"):  # A new page, and one in its place.
            pages.put(UIPage(key="lineage-b", text=text, description=what))
        for percent in (10.0, 20.0):
            pages.put_progress(UIPage(key="progress-b", text=percent, description=what))
            time.sleep(0.2)
    # Events are stored in the order in which they come: this one after any of the pages'.
    emit_event("parcel.test.last", resource={"prefect.resource.id": "parcel.test"})
    wait_for_events()

    def payloads(prefix: str) -> list[dict[str, object]]:
        with get_client(sync_client=True) as client:
            asked = {"filter": {"event": {"prefix": [prefix]}}}
            answer = client.request("POST", "/events/filter", json=asked).json()
        return [event["payload"] for event in answer["events"]]

    deadline = time.monotonic() + 30
    while not payloads("parcel.test.") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert payloads("parcel.test.")
    assert not [found for found in payloads("prefect.artifact") if found["description"] == what]


def test_a_server_that_never_answers_holds_neither_a_page_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
):
    from infra.prefect.page_queue import PageQueue, UIPage

    monkeypatch.setattr(best_effort_module, "HEALTH_TIMEOUT", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:  # Nobody accepts: the kernel does.
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.getsockname()[1]}/api")
        began = time.monotonic()
        with PageQueue(str(uuid.uuid4())) as pages:
            for number in range(100):
                pages.put(UIPage(key=f"lineage-{number}", text="# a", description="a step"))
            assert time.monotonic() - began < 1
        assert time.monotonic() - began < 20


def test_without_a_run_nothing_is_published():
    from infra.prefect.page_queue import PageQueue, UIPage

    with PageQueue("") as pages:
        pages.put(UIPage(key="lineage-a", text="# a", description="a step"))
        assert pages._pages.empty()
