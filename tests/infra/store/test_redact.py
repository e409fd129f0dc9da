"""Redaction: credentials go, the field's own words stay."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.manifest import Recipe
from infra.store.redact import REDACTED, redact, remember_secrets
from infra.store.store import Attempt, Store, manifest_name

X = "x7Kq"  # The secret; the rest of a value has none of it.


@pytest.mark.parametrize(
    "value",
    [
        {"password": X},
        {"runner": {"dbPassword": X, "region": "eu"}},
        {"api_key": X, "apiKey": X, "API-KEY": X, "apikey": X},
        {"HF_TOKEN": X, "accessToken": X, "token": [X, X]},
        {"GOOGLE_APPLICATION_CREDENTIALS": X, "AWS_SECRET_ACCESS_KEY": X},
        {"credentials": {"user": X, "key": X}},
        ["--password", X, "--region", "eu"],
        [f"--password={X}", f"--hf-token={X}"],
        ["sshpass", "-p", X, "ssh", "host"],
        ["/usr/bin/sshpass", f"-p{X}", "ssh"],
        ["mysql", f"-p{X}", "db"],
        ["curl", f"-ume:{X}", "https://x"],
        [{"name": "HF_TOKEN", "value": X}, {"key": "password", "value": {"a": [X]}}],
        {"headers": [["x-api-key", X], ("cookie", X)]},
        f"https://me:{X}@host/path",
        f"https://{X}@host/path",
        f"https://host/path?access_token={X}&page=2",
        f"runner_options.password={X} seed=3",
        f"error of --api-key {X} in 'run'",
        f'{{"secret": "{X}", "b": 1}}',
    ],
)
def test_credentials_go(value: Any):
    assert X in str(value)
    assert X not in str(redact(value))
    assert REDACTED in str(redact(value))


@pytest.mark.parametrize(
    "value",
    [
        {"tokenizer": {"path": "pieces.model", "vocab_size": 7}, "num_tokens": 64},
        {"soft_tokens": [16, 64], "tokens": "16", "keys": "k", "budget": 64, "secretary": "a"},
        ["--tokenizer", "pieces.model", "--xla_cpu_multi_thread_eigen=false"],
        "gs://bucket/folder/part@v1 https://host:80/path?page=2",
        {"password": None, "use_secret": True, "token": ""},
        (1, 2.5, None, True),
        [{"name": "budget", "value": "x7Kq"}, ["image", "token"], ["token", "image", "text"]],
        ["mysql", "-p", "db"],  # It asks for the password; the word after it is the database.
    ],
)
def test_the_rest_stays(value: Any):
    assert redact(value) == value


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just("api_key"), inner),
        max_leaves=12,
    )
)
def test_twice_is_once(value: Any):
    assert redact(redact(value)) == redact(value)


@dataclasses.dataclass(frozen=True)
class Runner:
    options: tuple[str, ...]
    region: str = "eu"


def test_manifest_on_disk_holds_no_credential(tmp_path: Path):
    store = Store(tmp_path)
    step = Recipe(kind="dataset", name="d", config=Runner(("--password", X)))
    made = Attempt(store, step).commit({"prefect": {"api_key": X, "flow_run_id": "f"}})
    assert X not in (store.state / manifest_name(step.key)).read_text()
    assert made.manifest.config == {"options": ["--password", REDACTED], "region": "eu"}
    assert made.manifest.environment["prefect"] == {"api_key": REDACTED, "flow_run_id": "f"}


def test_variables_that_are_recorded_are_redacted(monkeypatch: pytest.MonkeyPatch):
    from infra.store.environment import execution_environment

    monkeypatch.setenv("XLA_FLAGS", f"--xla_x=1 --token={X}")
    monkeypatch.setenv("HF_TOKEN", X)
    told = execution_environment()
    assert X not in str(told)
    assert "--xla_x=1" in told["hardware"]["xla_flags"]


def test_what_a_config_names_as_a_secret_goes_from_every_text():
    """An error of a step says it without its name."""
    config = {
        "pwd": "opensesame9",
        "auth": "me:Xa77wordpart",
        "headers": {"Authorization": "Bearer zz-top-99"},
        "mode": {"auth": "basic"},
        "credentials": {"user": "somebody-1", "keys": ["abc-def-1"]},
    }
    remember_secrets(config)
    said = "cannot log in with opensesame9, Xa77wordpart, zz-top-99, somebody-1 or abc-def-1"
    shown = redact(said)
    assert shown == f"cannot log in with {', '.join([REDACTED] * 4)} or {REDACTED}"
    assert redact("basic training") == "basic training"
    assert redact(shown) == shown
