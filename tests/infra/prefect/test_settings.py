"""What Prefect reads in the current folder, and in variables."""

import os
from pathlib import Path

import httpx
import pytest

from infra.errors import ConfigError
from infra.prefect.settings import check_current_folder, drop_unusable_proxies


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("prefect.toml", "broken = [", "invalid TOML"),
        ("pyproject.toml", '[tool.prefect.api]\nrequest_timeout = "never"\n', "request_timeout"),
        (".env", "PREFECT_API_REQUEST_TIMEOUT=never\n", "never"),
    ],
)
def test_settings_that_runs_could_not_read_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str, why: str
):
    monkeypatch.delenv("PREFECT_API_REQUEST_TIMEOUT", raising=False)
    monkeypatch.chdir(tmp_path)
    check_current_folder()
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=why) as error:
        check_current_folder()
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


@pytest.mark.parametrize("name", ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "http_proxy"])
@pytest.mark.parametrize(
    ("proxy", "stays"),
    [
        ("socks5://me:secret@127.0.0.1:9", False),  # Without socksio, which nothing here needs.
        ("socks://127.0.0.1:9/", False),  # As GNOME says it.
        ("quic://127.0.0.1:9", False),
        ("127.0.0.1:none", False),
        ("127.0.0.1:9", True),
        ("http://me:secret@127.0.0.1:9", True),
    ],
)
def test_a_proxy_that_the_client_cannot_use_is_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    proxy: str,
    stays: bool,
):
    for scheme in ("all", "http", "https"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)
    monkeypatch.setenv(name, proxy)
    drop_unusable_proxies()
    assert (name in os.environ) == stays
    told = capsys.readouterr().err
    assert told.startswith(f"parcel: {name} is left out, " if not stays else "")
    assert told.count("\n") == (not stays)
    assert "secret" not in told
    httpx.Client().close()  # What failed.
