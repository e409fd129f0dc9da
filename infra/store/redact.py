"""Redacts credentials in records, because manifests and run records are kept, shown and copied."""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

# Matched in names that are split into words: `hf_token` is a secret; `tokenizer` and `num_tokens`
# are ordinary terms of this field, and are not.
_SECRET = re.compile(
    r"_(?:passwords?|passwd|passphrase|secrets?|credentials?|token|(?:api|access|private)_?keys?)_"
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_USER_OF_URL = re.compile(r"([A-Za-z][\w+.-]*://)[^\s/@]+@")
_SETTING = re.compile(r"""([\w.-]+)(["']?\s*(?:=|:(?!//))\s*["']?)([^\s,;&?"'}]+)""")
_FLAG = re.compile(r"(--?[\w.-]+)(\s+)([^\s-]\S*)")


def redact(value: Any) -> Any:
    """Returns a plain value with all that looks like a credential redacted; idempotent.

    {"api_key": "x1", "budget": 64}          -> {"api_key": "[redacted]", "budget": 64}
    ["--password", "x1", "--tokenizer=t"]    -> ["--password", "[redacted]", "--tokenizer=t"]
    "https://me:x1@host/?access_token=x2"    -> "https://[redacted]@host/?access_token=[redacted]"

    Args:
      value: mappings, sequences, strings and numbers; anything else stays as it is.
    """
    if isinstance(value, Mapping):
        return {
            name: _redact_value(entry) if _is_secret(str(name)) else redact(entry)
            for name, entry in value.items()
        }
    if isinstance(value, str):
        return _redact_text(value)
    if isinstance(value, list | tuple):
        # ["--password", "x1"]: the secret is in an entry of its own, named by the entry before it.
        # Pairs each entry with the one before it, which may be a flag such as --password.
        preceding = ["", *value][: len(value)]
        return type(value)(
            _redact_value(entry) if _is_bare_flag(flag) else redact(entry)
            for flag, entry in zip(preceding, value, strict=True)
        )
    return value


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(f"_{'_'.join(_WORDS.findall(name)).lower()}_"))


def _is_bare_flag(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-") and "=" not in word and _is_secret(word)


def _redact_value(value: Any) -> Any:
    """Returns a secret's value redacted; empty values, None and booleans stay."""
    if isinstance(value, Mapping):
        return {name: _redact_value(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_redact_value(entry) for entry in value)
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED


def _redact_text(text: str) -> str:
    def blanked(match: re.Match[str]) -> str:
        name, sign, _ = match.groups()
        return f"{name}{sign}{REDACTED}" if _is_secret(name) else match[0]

    # URLs first: in https://token:x1@host, the setting "token" would swallow the host, too.
    text = _USER_OF_URL.sub(rf"\1{REDACTED}@", text)
    return _FLAG.sub(blanked, _SETTING.sub(blanked, text))
