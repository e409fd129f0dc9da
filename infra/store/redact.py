"""Redacts credentials in records, because manifests and run records are kept, shown and copied."""

import re
from collections.abc import Mapping
from typing import Any

from infra.credentials import REDACTED, is_secret, is_secret_value, redact_text, remember_secret

_NAME = re.compile(r"\w[\w.-]*")
_TAKES_PASSWORD = ("mysql", "mysqldump", "mysqladmin", "mariadb", "sshpass")
"""Programs whose option -p holds a password."""


def redact(value: Any) -> Any:
    """Returns a plain value with all that looks like a credential redacted; idempotent.

    {"api_key": "x1", "budget": 64}          -> {"api_key": "[redacted]", "budget": 64}
    ["--password", "x1", "--tokenizer=t"]    -> ["--password", "[redacted]", "--tokenizer=t"]
    "https://me:x1@host/?access_token=x2"    -> "https://[redacted]@host/?access_token=[redacted]"

    Args:
      value: mappings, sequences, strings and numbers; bytes go, and anything else stays.
    """
    if isinstance(value, Mapping):
        return {
            _redact_name(name): _redact_entry(_config_entry_name(value, name), entry)
            for name, entry in value.items()
        }
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bytes | bytearray):
        return REDACTED
    if isinstance(value, list | tuple):
        if len(value) == 2 and _NAME.fullmatch(str(value[0])) and is_secret(str(value[0])):
            return type(value)((value[0], _redact_value(value[1])))  # ("password", "x1")
        # ["--password", "x1"]: the secret is in an entry of its own, named by the entry before it.
        # Pairs each entry with the one before it, which may be a flag such as --password.
        preceding = ["", *value][: len(value)]
        program = str(value[0]).rpartition("/")[2] if value else ""
        return type(value)(
            _redact_word(program, flag, entry) for flag, entry in zip(preceding, value, strict=True)
        )
    return value


def remember_secrets(config: Any, name: str = "") -> None:
    """Has the credentials that a config names redacted wherever this process writes them.

    A step's error may say them without their names.
    """
    if isinstance(config, Mapping):
        for inner, entry in config.items():
            told = str(_config_entry_name(config, inner))
            remember_secrets(entry, told if not is_secret(name) else name)
    elif isinstance(config, list | tuple):
        for entry in config:
            remember_secrets(entry, name)
    elif isinstance(config, str) and is_secret(name):
        remember_secret(config)


def _config_entry_name(values: Mapping[Any, Any], name: Any) -> Any:
    """Returns the name of an entry, which Kubernetes writes as one: {"name": "X", "value": "x"}."""
    return values.get("name", values.get("key", name)) if name == "value" else name


def _redact_name(name: Any) -> Any:
    return redact_text(name) if isinstance(name, str) else name


def _redact_entry(name: Any, entry: Any) -> Any:
    secret = is_secret(str(name)) or (isinstance(entry, str) and is_secret_value(str(name), entry))
    return _redact_value(entry) if secret else redact(entry)


def _redact_word(program: str, flag: Any, word: Any) -> Any:
    """Returns a word of a command line, or any entry of a list, redacted."""
    if isinstance(flag, str) and flag.startswith("-") and "=" not in flag and is_secret(flag):
        return _redact_value(word)
    if isinstance(word, str) and isinstance(flag, str):
        if flag in ("-u", "-U", "--user", "--proxy-user"):
            return redact_text(f"-u {word}").removeprefix("-u ")
        if program == "curl" and word.startswith("-u"):
            return redact_text(f"curl {word}").removeprefix("curl ")
        if program in _TAKES_PASSWORD and word.startswith("-p") and word != "-p":
            return f"-p{REDACTED}"
        if (
            program == "sshpass" and flag == "-p"
        ):  # The others take a word of its own for no password.
            return REDACTED
    return redact(word)


def _redact_value(value: Any) -> Any:
    """Returns a secret's value redacted; empty values, None and booleans stay."""
    if isinstance(value, Mapping):
        return {name: _redact_value(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_redact_value(entry) for entry in value)
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED
