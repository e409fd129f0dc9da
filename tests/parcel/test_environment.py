"""What a command takes from its caller's environment: proxies, and encodings that lack letters."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from parcel.environment import bypass_proxy, drop_unusable_certificates

_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_VARIABLES = (*_NAMES, *map(str.upper, _NAMES))


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.mark.parametrize("proxy", ["http_proxy", "HTTPS_PROXY", "all_proxy"])
@pytest.mark.parametrize(
    ("spelling", "stated", "expected"),
    [
        ("no_proxy", None, "localhost,127.0.0.1,::1"),
        ("NO_PROXY", "corp.example, 127.0.0.1", "corp.example,127.0.0.1,localhost,::1"),
        ("no_proxy", "*", "*"),
    ],
)
def test_loopback_never_goes_through_a_proxy(
    plain: pytest.MonkeyPatch, proxy: str, spelling: str, stated: str | None, expected: str
):
    plain.setenv(proxy, "http://proxy.example:3128")
    if stated is not None:
        plain.setenv(spelling, stated)
    bypass_proxy()
    assert os.environ[spelling] == expected
    if stated != "*":
        assert os.environ["no_proxy"] == os.environ["NO_PROXY"]


def test_without_a_proxy_the_environment_stays(plain: pytest.MonkeyPatch):
    before = dict(os.environ)
    bypass_proxy()
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("name", "file", "why"),
    [
        ("SSL_CERT_FILE", "none.pem", "cannot be opened (No such file or directory)"),
        ("SSL_CERT_FILE", ".", "cannot be opened (Is a directory)"),
        ("SSL_CERT_FILE", "text", "has no certificate"),
        ("SSL_CERT_DIR", "none", "there is no such folder"),
        ("SSL_CERT_DIR", "text", "there is no such folder"),
        ("SSL_CERT_DIR", ".", None),
        ("REQUESTS_CA_BUNDLE", "none.pem", "cannot be opened"),
        ("REQUESTS_CA_BUNDLE", ".", None),
        ("CURL_CA_BUNDLE", "text", "has no certificate"),
        ("SSLKEYLOGFILE", "none/keys", "cannot be opened"),
        ("SSLKEYLOGFILE", "keys", None),
    ],
)
def test_files_of_tls_that_cannot_be_used_are_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys, tmp_path, name: str, file: str, why: str | None
):
    (tmp_path / "text").write_text("no certificate")
    monkeypatch.setenv(name, str(tmp_path / file))
    drop_unusable_certificates()
    told = capsys.readouterr().err
    assert (name in os.environ) == (why is None) == (told == "")
    if why:
        assert told.startswith(f"parcel: {name}='{tmp_path / file}' is left out, since ")
        assert why in told
        assert told.count("\n") == 1


def test_a_client_on_loopback_needs_no_certificates(address: str):
    script = f"import parcel, httpx; print(httpx.get({address!r}).text)"
    done = _run(["-c", script], SSL_CERT_FILE="/none.pem", SSLKEYLOGFILE="/none/keys")
    assert done.stdout == b"loopback\n", done.stderr
    assert done.stderr.count(b"\n") == 2


@pytest.fixture
def address() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"loopback")

        def log_message(self, format: str, *args: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def _run(words: list[str], **variables: str) -> subprocess.CompletedProcess[bytes]:
    others = {k: v for k, v in os.environ.items() if k not in _VARIABLES}
    return subprocess.run(
        [sys.executable, *words], env={**others, **variables}, capture_output=True, timeout=120
    )


@pytest.mark.parametrize("client", ["urllib.request", "httpx"])
def test_clients_reach_loopback_behind_a_proxy_that_is_none(address: str, client: str):
    ask = "urlopen(url).read()" if client == "urllib.request" else "get(url).content"
    script = f"import parcel, {client}; url = {address!r}; print({client}.{ask}.decode())"
    proxy = "http://127.0.0.1:9"  # Nothing listens there.
    done = _run(["-c", script], HTTP_PROXY=proxy, http_proxy=proxy)
    assert done.stdout == b"loopback\n", done.stderr[-500:]
    # Without it the proxy is asked, so that the test can fail.
    assert _run(["-c", script.replace("parcel, ", "")], http_proxy=proxy).returncode == 1


@pytest.mark.parametrize("encoding", ["latin-1", "ascii"])
def test_letters_that_the_output_lacks_end_no_command(encoding: str, tmp_path: object):
    words = ["-m", "parcel.cli.main", "results", "étude–二", "--store", f"{tmp_path}/none"]
    done = _run(words, PYTHONIOENCODING=encoding, PYTHONUTF8="0", LC_ALL="C")
    assert done.returncode == 2
    assert done.stderr.startswith(b"parcel: ")
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr


def test_what_it_starts_writes_utf_8_whatever_the_locale_is():
    script = (
        "import parcel, subprocess, sys; "
        "subprocess.run([sys.executable, '-c', 'print(chr(8211))'], check=True)"
    )
    done = _run(["-c", script], PYTHONUTF8="0", LC_ALL="C", PYTHONCOERCECLOCALE="0")
    assert done.stdout == "–\n".encode(), done.stderr[-500:]
