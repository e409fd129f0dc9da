import importlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from flows.graph import explain
from flows.steps import registry, user_code
from infra import references, source_code
from infra.store.store import Store
from model.eval.metrics import registry as metrics
from parcel.cli import main as cli
from tests.flows.pages.studies import write_study


class Done(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch):
    """Changes a source file, as far as the code of steps is concerned."""

    def apply(path: str, old: str, new: str) -> None:
        files = source_code.checkout().files
        text = files[path].decode()
        assert old in text
        changed = source_code.Tree({**files, path: text.replace(old, new).encode()})
        for module in (registry, explain, source_code):
            monkeypatch.setattr(module, "checkout", lambda: changed)
        registry._code_digest.cache_clear()

    yield apply
    monkeypatch.undo()
    registry._code_digest.cache_clear()


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Forgets code of the user's own, as another process would not know it; so does the end."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    before = set(sys.modules)
    paths = [*sys.path]

    def apply() -> None:
        sys.path[:] = paths
        own = {_module(path) for path in source_code._user_files}
        for name in [n for n in sys.modules if n not in before and n in own]:
            del sys.modules[name]
        importlib.invalidate_caches()
        source_code._user_files.clear()
        for cached in (
            source_code.checkout,
            user_code.canonical_reference,
            user_code.library_versions,
            registry._code_digest,
            metrics._user_metric,
            references.entry_points,
        ):
            cached.cache_clear()

    yield apply
    apply()


def _module(path: str) -> str:
    return path.removeprefix("own/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store with the finished study `toy`; nobody writes to it."""
    store = Store(tmp_path_factory.mktemp("toy"))
    write_study(store)
    return store


@pytest.fixture
def parcel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Done]:
    """Runs the command line's main in this process, which has imported JAX already."""

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["parcel", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    return call
