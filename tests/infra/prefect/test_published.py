"""A view that cannot be published never stops the work."""

import socket

import pytest

from infra.prefect import published as module
from infra.prefect.published import published


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_seen", (float("-inf"), False))
    monkeypatch.setattr(module, "_warned", False)


def test_where_no_server_answers_the_call_is_not_even_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{probe.getsockname()[1]}/api")
    called: list[int] = []
    assert [published(called.append, n) for n in range(3)] == [None] * 3
    assert called == []
    said = capsys.readouterr().err
    assert said.count("the work continues") == 1
    assert said.count("\n") == 1


def test_a_call_that_raises_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{server.getsockname()[1]}/api")
        assert published(int, "7") == 7
        assert published(int, "seven") is None
        assert published(int, "eight") is None
    assert capsys.readouterr().err.count("'seven'") == 1
