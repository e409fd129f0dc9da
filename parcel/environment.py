"""What a command takes from the environment of whoever calls it, made safe for all it starts."""

import io
import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_PACKAGES = ("flows", "infra", "model", "parcel", "pipelines")

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_KEY_LOG = "SSLKEYLOGFILE"
"""Variable with the file to which Python adds the keys of each connection."""


class _OwnPackages(MetaPathFinder):
    """Finds our packages in the folder of this one, whatever comes before it on Python's path."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(_ROOT)]) if fullname in _PACKAGES else None


def find_own_packages() -> None:
    """Has this process import our packages, also where its folder has a `model.py` or `flows/`.

    Raises:
      ImportError: if one of another project is imported already.
    """
    for name in _PACKAGES:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and not os.path.samefile(file, _ROOT / name / "__init__.py"):
            raise ImportError(
                f"{file} hides the package {name} of parcel-pipeline: import parcel before it, or "
                f"rename it."
            )
    sys.meta_path.insert(0, _OwnPackages())


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


def drop_unusable_certificates() -> None:
    """Takes variables of TLS out of the environment whose files cannot be used, with a line each.

    Clients read the files before they have an address to call, and so Prefect's would fail on the
    way to a server on loopback, too, which has no certificate.
    """
    for name in (*_CERTIFICATES, _KEY_LOG):
        if (path := os.environ.get(name)) and (why := _file_problem(name, path)):
            del os.environ[name]
            instead = "" if name == _KEY_LOG else "; the system's certificates count"
            print(f"parcel: {name}={path!r:.200} is left out, {why}{instead}.", file=sys.stderr)


def _file_problem(name: str, path: str) -> str | None:
    """Returns why the files of a variable of TLS cannot be used; None if they can."""
    import ssl

    # A client takes several folders, as OpenSSL does, and needs one of them.
    folders = path.split(os.pathsep) if name == "SSL_CERT_DIR" else [path]
    try:
        if name == _KEY_LOG:
            with open(path, "a"):
                return None
        if name != "SSL_CERT_FILE" and any(map(os.path.isdir, folders)):
            return None
        if name == "SSL_CERT_DIR":
            return "since there is no such folder"
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:  # Which is an error of the system's kind, too.
        return "since the file has no certificate"
    except OSError as error:
        return f"since it cannot be opened ({error.strerror})"
    return None


def use_utf8() -> None:
    """Makes texts UTF-8 in every Python that this process starts, and has each end by itself."""
    os.environ["PYTHONUTF8"] = "1"
    # With it each of them would wait for its user's words once its work is done.
    os.environ.pop("PYTHONINSPECT", None)


def use_utf8_output() -> None:
    """Shows by escapes what the output's encoding lacks, and what a terminal would obey."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # In a notebook it is of another kind.
            stream.reconfigure(errors="backslashreplace")
    from infra.terminal import escape_output  # Ours, once `find_own_packages` was called.

    escape_output()
