"""Settings of every test: JAX on CPU, and no silent promotion of dtypes or ranks.

They are environment variables, set before anything imports JAX: tests without JAX never load it.
"""

import importlib.metadata
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# A deadline for one example measures what else the machine has to do.
hypothesis.settings.register_profile("parcel", deadline=None)
hypothesis.settings.load_profile("parcel")

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
# A shell has what runs in its background ignore SIGINT, and so would every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Servers of tests draw no key among the settings of whoever runs the tests.
os.environ.setdefault("PARCEL_KEY", str(Path(__file__).parents[1] / ".pytest_cache" / "key"))
# What one test compiled, the others and their processes find, in the next run as well.
_PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "jax"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_PROGRAMS))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
if importlib.metadata.version("jaxlib").startswith("0.10."):
    # Tests compile much and run little: XLA's older emitter of fused loops, in one piece of LLVM
    # code, compiles in half the time and computes the same. Later versions abort at the flag.
    os.environ.setdefault(
        "XLA_FLAGS",
        "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips deep tests from `PARCEL_DEEP_UNTIL` on [Unix seconds].

    A machine that takes the tests at half the speed then tells how the others ended, instead of
    being cut off in the middle.
    """
    until = os.environ.get("PARCEL_DEEP_UNTIL")
    if until and item.get_closest_marker("deep") and time.time() > float(until):
        pytest.skip("not begun: the time for deep tests is over (PARCEL_DEEP_UNTIL)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the rooms with the longest modules first, and draws deep modules.

    A module runs in one process: a long one that begins last has the others wait for it.
    """
    items.sort(key=lambda item: _LONG_ROOMS.isdisjoint(item.path.parts))
    _draw_deep_modules(items)


_LONG_ROOMS = {"certificate", "nodes", "e2e", "effects"}


def _draw_deep_modules(items: list[pytest.Item]) -> None:
    """Skips one part of the deep modules if `PARCEL_DEEP_DRAW`, any integer, draws the other.

    All of them take longer than a change should wait for. Continuous integration draws by the
    commit, so that the same commit always has the same tests, and a few commits have them all.
    """
    draw = os.environ.get("PARCEL_DEEP_DRAW")
    if draw is None:
        return
    modules = sorted({item.path for item in items if item.get_closest_marker("deep")})
    # Neighbours in the list are of one kind: each draw has some of every room.
    part = int(draw) % _DEEP_PARTS
    drawn = {path for n, path in enumerate(modules) if n % _DEEP_PARTS == part}
    for item in items:
        if item.get_closest_marker("deep") and item.path not in drawn:
            reason = f"another commit's: PARCEL_DEEP_DRAW={draw} draws part {part}"
            item.add_marker(pytest.mark.skip(reason=reason))


_DEEP_PARTS = 2


def _testing(server, monkeypatch: pytest.MonkeyPatch):
    """Yields a started server with the bucket `testing`, which this process's clients find."""
    with server:
        server.bucket("testing")
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch):
    """A Cloud Storage on loopback that this process's clients find, with the bucket `testing`."""
    from tests.gcs.server import GCS

    yield from _testing(GCS(), monkeypatch)


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch):
    """An S3 on loopback that this process's clients find, with the bucket `testing`."""
    from tests.s3.server import S3

    yield from _testing(S3(), monkeypatch)


@pytest.fixture
def az(monkeypatch: pytest.MonkeyPatch):
    """Azure's blobs on loopback that this process's clients find, with the container `testing`."""
    from tests.az.server import Azure

    yield from _testing(Azure(), monkeypatch)


@pytest.fixture(params=["gcs", "s3"])
def server(request: pytest.FixtureRequest):
    """A Cloud Storage, and an S3, with the bucket `testing`; see `GCS.scheme`."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def fast_compiler():
    """For programs that run once or twice: the compiler need not optimize."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="session")
def _served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store with a server, and the server's address; one for all, since a start is dear."""
    from infra.prefect.server import Sidecar, server_of

    store = tmp_path_factory.mktemp("served") / "store"
    with pytest.MonkeyPatch.context() as patch:
        _forget_server(patch, store)
        sidecar = Sidecar(function="flows.pages.app:store_pages", argument=str(store))
        server = server_of(store, auth="me:secret", sidecar=sidecar)
        note = server.__enter__()
    yield store, note.api
    server.__exit__(None, None, None)


@pytest.fixture(scope="module")
def served_store(_served: tuple[Path, str]) -> Iterator[Path]:
    """A store with a server that asks for an auth string, as the client of this process knows."""
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_CLIENT_CUSTOM_HEADERS,
        PREFECT_HOME,
        temporary_settings,
    )

    from infra.prefect.encryption import read_or_draw_key
    from infra.prefect.owner import HEADER, owner_proof

    store, api = _served
    with pytest.MonkeyPatch.context() as patch:
        _forget_server(patch, store)
        patch.setenv("PREFECT_API_URL", api)
        patch.setenv("PREFECT_API_AUTH_STRING", "me:secret")
        settings = {
            PREFECT_API_URL: api,
            PREFECT_API_AUTH_STRING: "me:secret",
            PREFECT_CLIENT_CUSTOM_HEADERS: {HEADER: owner_proof("me:secret", read_or_draw_key())},
            PREFECT_HOME: store / "prefect",
        }
        with temporary_settings(settings):
            yield store
            # Prefect's queues are the process's, and would go on to this server for ever.
            from infra.prefect.rows import flush

            flush()


def _forget_server(patch: pytest.MonkeyPatch, store: Path) -> None:
    """Has this process know no server, and keep Prefect's files in a store."""
    patch.setenv("PREFECT_HOME", str(store / "prefect"))
    for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"):
        patch.setenv(name, "")
        patch.delenv(name)
