"""What tells a server its owner's commands from those of everybody else who has its password.

The password is meant to be given away, in the link of `parcel serve`. The owner's commands send one
more header, which only they can make: its key is a file of theirs, see `infra.prefect.encryption`.
It follows from the auth string, too, so that a server that learns it can use it nowhere else.
"""

import hashlib
import hmac
import json
import os

from infra.errors import ConfigError
from infra.prefect.encryption import VARIABLE, key_file, read_or_draw_key

HEADER = "Parcel-Owner"
"""Header of the owner's requests."""

HEADERS = "PREFECT_CLIENT_CUSTOM_HEADERS"
"""Variable with headers that Prefect's client adds to each request, as a JSON object."""


def owner_proof(auth: str, key: str) -> str:
    """Returns the value of `HEADER` for a server.

    Args:
      auth: auth string of the server, "name:password".
      key: key of its owner, see `read_or_draw_key`.
    """
    return hmac.new(key.encode(), f"owner of {auth}".encode(), hashlib.sha256).hexdigest()


def prove_owner() -> None:
    """Has Prefect's client, which is imported later, show the server that its owner asks.

    Without a key on this machine the client shows nothing, and the server takes it for a guest.
    """
    auth = os.environ.get("PREFECT_API_AUTH_STRING")
    try:
        if not auth or not (os.environ.get(VARIABLE) or key_file().exists()):
            return
        proof = owner_proof(auth, read_or_draw_key())
        headers = json.loads(os.environ.get(HEADERS) or "{}")
    except (ConfigError, ValueError):  # Whoever needs the key says so, and so does Prefect.
        return
    if isinstance(headers, dict):
        os.environ[HEADERS] = json.dumps({**headers, HEADER: proof})
