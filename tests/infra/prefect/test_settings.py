"""What Prefect reads in the current folder."""

from pathlib import Path

import pytest

from infra.errors import ConfigError
from infra.prefect.settings import check_current_folder


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
