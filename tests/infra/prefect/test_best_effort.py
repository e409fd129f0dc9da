"""A view that cannot be published never stops the work."""

import http.server
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from infra.prefect import best_effort as module
from infra.prefect.best_effort import best_effort


def test_where_no_server_answers_the_call_is_not_even_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{probe.getsockname()[1]}/api")
    called: list[int] = []
    assert [best_effort(called.append, n) for n in range(3)] == [None] * 3
    assert called == []
    said = capsys.readouterr().err
    assert said.count("the work continues") == 1
    assert said.count("\n") == 1


@pytest.fixture
def healthy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A server that says that it is well, and nothing else."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.server_port}/api")
        yield
        server.shutdown()


@pytest.mark.usefixtures("healthy")
def test_a_call_that_raises_is_reported_once(capsys: pytest.CaptureFixture[str]):
    assert best_effort(int, "7") == 7
    assert best_effort(int, "seven") is None
    assert best_effort(int, "eight") is None
    assert capsys.readouterr().err.count("'seven'") == 1


@pytest.mark.usefixtures("healthy")
def test_a_call_that_does_not_end_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(module, "DEADLINE", 0.2)
    never = threading.Event()
    assert best_effort(never.wait, 60) is None
    never.set()
    assert "did not answer within 0 s" in capsys.readouterr().err


def test_a_server_that_accepts_and_never_answers_costs_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(module, "HEALTH_TIMEOUT", 0.5)
    calls: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:  # Nobody accepts: the kernel does.
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.getsockname()[1]}/api")
        began = time.monotonic()
        assert [best_effort(calls.append, n) for n in range(20)] == [None] * 20
        assert time.monotonic() - began < 5
    assert calls == []
    assert "no server answers" in capsys.readouterr().err
