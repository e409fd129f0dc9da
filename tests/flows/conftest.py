import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from flows.cli import main as cli


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


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
