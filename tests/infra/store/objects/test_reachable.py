"""A bucket whose server cannot be reached is told in one line, at every door, within seconds."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.objects.bucket import Bucket
from infra.store.objects.object_client import BucketError
from infra.store.objects.reachable import check_reachable, has_metadata_server
from tests.gcs.server import GCS
from tests.gcs.server import environment as of_google
from tests.s3.server import S3

PARCEL = str(Path(sys.executable).with_name("parcel"))
VARIABLES = {
    "gs": ("STORAGE_EMULATOR_HOST",),
    "s3": ("AWS_ENDPOINT_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT",),
}


@pytest.fixture(params=["closed", "mute"])
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    """A port at which nobody listens, and one that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if request.param == "mute":
            listener.listen()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.slow
def test_a_server_without_an_answer_is_refused_in_seconds(server: str):
    began = time.monotonic()
    with pytest.raises(BucketError, match=rf"^gs://mine: .*{server}; .*NAME"):
        check_reachable("gs://mine", server, "NAME")
    assert time.monotonic() - began < 20


def test_an_answer_of_whatever_kind_is_one(gcs: GCS):
    check_reachable("gs://testing", gcs.url, "NAME")


@pytest.mark.skipif(has_metadata_server(), reason="this machine's cloud gives credentials")
def test_without_credentials_a_bucket_is_refused_with_what_to_set(s3: S3, monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_") and "ENDPOINT" not in name]:
        monkeypatch.delenv(name)
    began = time.monotonic()
    with pytest.raises(BucketError, match=r"^s3://testing: no credentials; set AWS_ACC"):
        Bucket("s3://testing")
    assert time.monotonic() - began < 20


@pytest.mark.deep
@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ("gs", ("status", "--store", "gs://mine/store")),
        ("s3", ("results", "demo", "--store", "s3://mine/store")),
        ("az", ("run", "--store", "az://mine/store")),
        ("gs", ("run", "--explain", "data_root=gs://mine/raw")),
        ("gs", ("data", "check", "gs://mine/raw", "--source", "web")),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_a_command_says_so_in_one_line(server: str, scheme: str, words: tuple[str, ...], tmp_path):
    variables = {
        **of_google(server),
        **dict.fromkeys(VARIABLES[scheme], server),
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AZURE_STORAGE_ACCOUNT_NAME": "a",
        "AZURE_STORAGE_ACCOUNT_KEY": "b" * 8,
        "PARCEL_STATE": str(tmp_path),
    }
    began = time.monotonic()
    done = subprocess.run(
        [PARCEL, *words],
        env={**os.environ, **variables},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    took = time.monotonic() - began
    assert done.returncode in (1, 2)
    (line,) = [text for text in done.stderr.splitlines() if not text.startswith("[")]
    assert line.startswith("parcel: ")
    assert re.search(f"{scheme}://mine: .*{server}; .*{VARIABLES[scheme][0]}", line)
    print(f"{took:.0f} s")
