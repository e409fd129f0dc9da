"""Tells within seconds that a bucket's server cannot be reached.

The clients' libraries try again for minutes, which is right for a bucket that has a bad moment, and
wrong for an address where nobody is.
"""

import functools
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from infra.store.objects.object_client import BucketError

_DEADLINE = 12.0
"""Time in which a server must have given an answer, of whatever kind [s]."""
_METADATA_SERVER = ("169.254.169.254", 80)
"""Address of a machine's metadata, in every cloud."""
_METADATA_TIMEOUT = 2.0
"""Longest wait for it [s]; it is a millisecond away where there is one."""
_PAUSE = 1.0
"""Pause between two tries [s]."""


def check_reachable(uri: str, server: str, variable: str) -> None:
    """Refuses a bucket whose server gives no answer at all, an error being one.

    Args:
      uri: the bucket, for people [URI].
      server: address of its server [URL].
      variable: variable of the environment that names another server.

    Raises:
      BucketError: if it gives none.
    """
    # A proxy for everything may be one that Python's own client does not speak to, such as SOCKS.
    parts, proxies = urlsplit(server), urllib.request.getproxies()
    is_direct = urllib.request.proxy_bypass(parts.hostname or "")
    if "all" in proxies and parts.scheme not in proxies and not is_direct:
        return
    # In a thread, since the look-up of a name has no time limit of its own.
    reasons = ["it gives no answer"]
    answered = threading.Event()

    def ask() -> None:
        until = time.monotonic() + _DEADLINE
        while (left := until - time.monotonic()) > 0 and not answered.is_set():
            try:
                _ask_bucket_server(server, timeout=left)
            except (OSError, ValueError) as error:
                reasons.append(str(getattr(error, "reason", "") or error))
                answered.wait(min(_PAUSE, max(until - time.monotonic(), 0.0)))
            else:
                answered.set()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_DEADLINE)
    if not answered.is_set():
        answered.set()  # Nobody waits for it any more.
        raise BucketError(
            f"{uri}: no answer from {server}; check {variable} and the network, with its proxy: "
            f"{reasons[-1]}"
        )


@functools.cache
def has_metadata_server() -> bool:
    """Returns whether this machine is a cloud's, which gives credentials to who runs there.

    The clients' libraries ask for them at this address for a minute or more if nobody is there.
    """
    try:
        socket.create_connection(_METADATA_SERVER, _METADATA_TIMEOUT).close()
    except OSError:
        return False
    return True


def _ask_bucket_server(server: str, *, timeout: float) -> None:
    # OPTIONS reads nothing, and every HTTP server has some answer to it.
    request = urllib.request.Request(f"{server.rstrip('/')}/", method="OPTIONS")
    try:
        urllib.request.urlopen(request, timeout=timeout).close()
    except urllib.error.HTTPError as error:
        error.close()
    except urllib.error.URLError as error:
        # Its certificate is not known here, but may be to the client's library.
        if not isinstance(error.reason, ssl.SSLError):
            raise
