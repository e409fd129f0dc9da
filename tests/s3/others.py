"""Servers that others wrote, for compatibility: moto's S3, and Azurite, an Azure Blob Storage."""

import base64
import contextlib
import email.utils
import hmac
import importlib.util
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's own account, which is published with it."""


@contextlib.contextmanager
def moto_server() -> Iterator[dict[str, str]]:
    """Yields the environment of clients of a moto with the bucket `testing`; skips without moto."""
    if importlib.util.find_spec("moto") is None:
        pytest.skip("needs moto[server]")
    port = _free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    url = f"http://127.0.0.1:{port}"
    with _running(command, port):
        urllib.request.urlopen(urllib.request.Request(f"{url}/testing", method="PUT")).close()
        yield {
            "AWS_ENDPOINT_URL": url,
            "AWS_ACCESS_KEY_ID": "any",
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_REGION": "us-east-1",
        }


@contextlib.contextmanager
def azurite_server(folder: Path) -> Iterator[dict[str, str]]:
    """Yields the environment of clients of an Azurite with the container `testing`.

    Skips where there is no `azurite-blob` on PATH.

    Args:
      folder: where it keeps its files.
    """
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("needs azurite-blob on PATH: npm install azurite")
    port = _free_port()
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    url = f"http://127.0.0.1:{port}/{_ACCOUNT}"
    with _running([*command, "--skipApiVersionCheck", "--location", str(folder)], port):
        _make_container(url)
        yield {
            "AZURE_STORAGE_ENDPOINT": url,
            "AZURE_STORAGE_ACCOUNT_NAME": _ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": _KEY,
        }


def _make_container(url: str) -> None:
    """Makes the container `testing`, by a request that is signed with the account's key.

    Source: https://learn.microsoft.com/rest/api/storageservices/authorize-with-shared-key.
    """
    headers = {
        "x-ms-date": email.utils.formatdate(usegmt=True),
        "x-ms-version": "2021-08-06",
    }
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    resource = f"/{_ACCOUNT}/{_ACCOUNT}/testing\nrestype:container"
    digest = hmac.digest(base64.b64decode(_KEY), "\n".join([*lines, resource]).encode(), "sha256")
    signature = base64.b64encode(digest).decode()
    request = urllib.request.Request(
        f"{url}/testing?restype=container",
        method="PUT",
        headers={**headers, "Authorization": f"SharedKey {_ACCOUNT}:{signature}"},
    )
    urllib.request.urlopen(request).close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    """Runs a server until the context is left, from the moment it listens."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            assert process.poll() is None, f"{command[0]} has ended: {process.returncode}"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            time.sleep(0.05)
        yield
    finally:
        process.kill()  # Asked to end, Azurite waits for its clients.
        process.wait()
