"""What a command takes from the environment of whoever calls it, made safe for all it starts."""

import io
import os
import sys

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def bypass_proxy() -> None:
    """Adds loopback to the hosts that this process, and those it starts, reach without a proxy.

    Prefect's client, Ray's, Cloud Storage's and Python's own all read `no_proxy`; some know it in
    capitals only. Without a proxy nothing changes.
    """
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXIES):
        return
    for name in ("no_proxy", "NO_PROXY"):
        # What the user states in one spelling counts in both.
        stated = os.environ.get(name) or os.environ.get(name.swapcase()) or ""
        hosts = [host.strip() for host in stated.split(",") if host.strip()]
        if "*" not in hosts:
            os.environ[name] = ",".join(dict.fromkeys([*hosts, *_LOOPBACK]))


def use_utf8() -> None:
    """Makes texts UTF-8 in every Python that this process starts, whatever the locale is."""
    os.environ["PYTHONUTF8"] = "1"


def print_any_character() -> None:
    """Shows what the output's encoding lacks by escapes, instead of ending with an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Not in a notebook, where it is another kind.
            stream.reconfigure(errors="backslashreplace")
