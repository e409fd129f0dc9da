"""A bucket in another region is refused, where both places are known."""

import http.server
import threading
from collections.abc import Iterator

import pytest

from infra.store.objects import regions
from infra.store.objects.bucket import Bucket
from tests.gcs.faults import Rule
from tests.gcs.server import GCS


class _Metadata(http.server.BaseHTTPRequestHandler):
    zone = "projects/123456/zones/europe-west4-a"

    def do_GET(self) -> None:
        known = self.path == "/computeMetadata/v1/instance/zone"
        told = known and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if told else 403)
        self.end_headers()
        self.wfile.write(self.zone.encode() if told else b"")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine of Compute Engine in europe-west4."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Metadata) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_address[1]}")
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def gcs(gcs: GCS, tmp_path, monkeypatch: pytest.MonkeyPatch) -> GCS:
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    return gcs


@pytest.mark.parametrize(
    ("location", "is_here"),
    [
        ("EUROPE-WEST4", True),
        ("EUROPE-WEST1", False),
        ("US-CENTRAL1", False),
        ("EU", True),
        ("US", False),
        ("ASIA", False),
        ("EUR4", True),
        ("NAM4", False),
        ("NEW7", True),  # Nobody here knows it.
    ],
)
def test_a_bucket_is_here_or_surely_elsewhere(gcs: GCS, metadata, location: str, is_here: bool):
    gcs.bucket("there", location)
    if is_here:
        Bucket("gs://there/x")
    else:
        told = (
            rf"gs://there/x is in {location.lower()} and this machine in europe-west4: "
            r".* set PARCEL_ALLOW_CROSS_REGION=1\.$"
        )
        with pytest.raises(ValueError, match=told):
            Bucket("gs://there/x")


def test_a_bucket_of_chosen_regions_is_in_those():
    placed = {"location": "EU", "customPlacementConfig": {"dataLocations": ["EUROPE-WEST1"]}}
    assert not regions._may_contain(placed, "europe-west4")
    assert regions._may_contain(placed, "europe-west1")


def test_it_may_be_allowed(gcs: GCS, metadata, monkeypatch: pytest.MonkeyPatch):
    gcs.bucket("there", "US-EAST1")
    monkeypatch.setenv("PARCEL_ALLOW_CROSS_REGION", "1")
    assert Bucket("gs://there/x").listing("") == {}


def test_what_is_stated_is_believed(gcs: GCS, metadata, monkeypatch: pytest.MonkeyPatch):
    gcs.bucket("there", "US-EAST1")
    monkeypatch.setenv("PARCEL_REGION", "us-east1")
    Bucket("gs://there/x")
    monkeypatch.setenv("PARCEL_REGION", "us-east1-b")
    with pytest.raises(ValueError, match=r"PARCEL_REGION .*'us-east1-b'"):
        Bucket("gs://there/x")


def test_nothing_known_is_allowed(gcs: GCS, monkeypatch: pytest.MonkeyPatch):
    gcs.bucket("there", "US-EAST1")
    assert Bucket("gs://there/x").listing("") == {}  # No Compute Engine.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:9")  # No answer.
    assert Bucket("gs://there/x").listing("") == {}


def test_who_may_not_ask_for_the_location_may_read(gcs: GCS, metadata):
    gcs.bucket("there", "US-EAST1")
    gcs.fail(Rule(action="answer", verb="bucket", status=403, times=None))
    Bucket("gs://there/x")
    assert gcs.faults.fired()[0] > 0
