"""Signs a statement, and checks a signature: a DSSE envelope with an Ed25519 key.

    {"payloadType": "application/vnd.in-toto+json", "payload": BASE64,
     "signatures": [{"keyid": "ed25519:…", "sig": BASE64}]}

The signature is over the type and the bytes of the payload as they are, so nothing depends on how
JSON is spelled.

Source: DSSE 1.0, https://github.com/secure-systems-lab/dsse/blob/master/protocol.md; RFC 8032.
"""

import base64
import json
import os
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from infra.errors import ConfigError
from infra.typed_json import parse_typed

_PAYLOAD_TYPE = "application/vnd.in-toto+json"
_PREFIX = "ed25519:"


def make_key(path: Path) -> str:
    """Writes a new private key, readable by its owner alone, and returns the public line.

    Raises:
      ConfigError: if the file is there already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_new_file("--new-key", path, text, mode=0o600)
    return public_line(key)


def read_key(path: Path) -> Ed25519PrivateKey:
    """Reads a private key in PEM, without a password.

    Raises:
      ConfigError: if the file is no such key.
    """
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"--key {path}: {error.strerror or error}.") from None
    except (ValueError, TypeError):  # The latter of a key with a password.
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(
            f"--key must be an Ed25519 key in PEM without a password, got {path}; "
            f"`parcel certify --new-key FILE` makes one."
        )
    return key


def public_line(key: Ed25519PrivateKey) -> str:
    """Returns the public half of a key: ed25519: and 32 bytes in base64."""
    return _PREFIX + base64.b64encode(key.public_key().public_bytes_raw()).decode()


def write_envelope(statement: dict[str, Any], key: Ed25519PrivateKey, path: Path) -> None:
    """Signs a statement, and writes its envelope to a new file.

    Raises:
      ConfigError: if the file is there already, or cannot be written.
    """
    payload = json.dumps(statement, ensure_ascii=False).encode()  # Tables keep their order.
    signature = base64.b64encode(key.sign(_signed_bytes(payload))).decode()
    envelope = {
        "payloadType": _PAYLOAD_TYPE,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [{"keyid": public_line(key), "sig": signature}],
    }
    _write_new_file("--out", path, json.dumps(envelope).encode() + b"\n", mode=0o666)


def open_envelope(path: Path, public_key: str = "") -> tuple[dict[str, Any], str, str]:
    """Returns the statement in an envelope, the public key that it names, and what is wrong.

    The last is "" if the signature is that key's; with `public_key`, if it is that one's.

    Raises:
      ConfigError: if the file is no envelope of a statement, or `public_key` is no key.
    """
    expected = _public_key("--public-key", public_key) if public_key else None
    try:
        envelope = parse_typed(dict[str, Any], path.read_bytes(), f"{path}")
        payload = base64.b64decode(envelope["payload"], validate=True)
        statement = parse_typed(dict[str, Any], payload, "its payload")
        (signature,) = envelope["signatures"]
        named, signed = signature["keyid"], base64.b64decode(signature["sig"])
        signer = expected or _public_key("keyid", named)
    except OSError as error:
        raise ConfigError(f"FILE {path}: {error.strerror or error}.") from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"FILE must be a certificate as `parcel certify` writes it, got {path}: {error}"
        ) from None
    if public_key and named != public_key:
        return statement, named, f"it is signed by {named}, not by {public_key}"
    try:
        signer.verify(signed, _signed_bytes(payload))
    except InvalidSignature:
        return statement, named, f"the signature is not that of {named} over these bytes"
    return statement, named, ""


def _public_key(field: str, line: str) -> Ed25519PublicKey:
    try:
        raw = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
        return Ed25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise ConfigError(
            f"{field} must be {_PREFIX} and 32 bytes in base64, as `parcel certify` prints it, got "
            f"{line!r:.80}."
        ) from None


def _signed_bytes(payload: bytes) -> bytes:
    # DSSE's "pre-authentication encoding": the type is signed, too.
    kind = _PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload)


def _write_new_file(field: str, path: Path, data: bytes, *, mode: int) -> None:
    try:
        # Created with its mode, so that nobody can read it in between; never over another file.
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise ConfigError(f"{field} must be a new file, got {path}; name another one.") from None
    except OSError as error:
        raise ConfigError(f"{field} {path}: {error.strerror or error}.") from None
    with os.fdopen(number, "wb") as file:
        file.write(data)
