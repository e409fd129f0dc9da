"""Published weights on the Hugging Face Hub: the files of a repository, and who may fetch them.

The Hub's own library is not used: its download (2.4.0) starts over after a kill and compares no
digest, and it brings a compiled library. What of its protocol is needed:

    GET /api/models/ORG/NAME/revision/REVISION?blobs=true    commit, licence, files with digests
    GET /ORG/NAME/resolve/COMMIT/FILE                        a file, often by a redirect to a CDN

Source: huggingface_hub 2.4.0, `hf_api.py` (`model_info`), `utils/_http.py` (`hf_raise_for_status`).
"""

import dataclasses
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from infra.download import DownloadError, DownloadRefusedError, download
from infra.errors import ConfigError, one_line
from infra.typed_json import parse_json
from pipelines.fetch.catalogue import DataSet, RemoteFile
from pipelines.fetch.fetch import FETCH_NOTES, read_addresses
from pipelines.records.licence import NONE_STATED

TOKEN, ENDPOINT = "HF_TOKEN", "HF_ENDPOINT"
"""Variables of the environment: an account's token, and the address of another server; the names
are the Hub's own."""

_HUB = "https://huggingface.co"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

_MAX_LISTING = 32 << 20
"""Largest list of a repository's files [bytes]; one of ten thousand files has 3 MB."""

_COMMIT = r"[0-9a-f]{40}"
_RESOLVED = re.compile(rf"/([^/]+/[^/]+)/resolve/({_COMMIT})/")
_REQUESTED = re.compile(r"/([^/]+/[^/]+)/(?:resolve|revision)/([^/?]+)")

_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_WANTED = re.compile(
    rf"""{_WEIGHTS.pattern} | model\.safetensors\.index\.json
    | (config|generation_config|preprocessor_config|processor_config|chat_template)\.json
    | tokenizer\.(model|json) | (tokenizer_config|special_tokens_map|added_tokens|vocab)\.json
    | merges\.txt | README\.md | (LICENSE|NOTICE|USE_POLICY)(\.\w+)?""",
    re.VERBOSE | re.ASCII,
)
"""Files that are fetched: of the repository's top folder, and none that is a program when read."""


def list_weights(data_set: DataSet, folder: Path) -> DataSet:
    """Returns a catalogue's weights with their files at one commit, their digests and licence.

    Without a stated revision it is the commit that the folder has files of, if any; so the same
    command always gives the same weights.

    Args:
      data_set: weights, of which `hub` is set.
      folder: the folder that they are fetched into.

    Raises:
      ConfigError: if the folder has files of another repository, the environment's token cannot
        be sent, or the repository has no weights that can be read.
      DownloadError: if the Hub cannot be reached, refuses, or answers otherwise than the Hub does.
    """
    repository, _, revision = data_set.hub.partition("@")
    fetched_commit = _fetched_commit(folder, repository)
    revision = revision or fetched_commit or "main"
    listing = _read_listing(repository, revision)
    try:
        commit = re.fullmatch(_COMMIT, listing["sha"])
        files = [
            _remote_file(repository, listing["sha"], entry)
            for entry in listing["siblings"]
            if _WANTED.fullmatch(entry["rfilename"])
        ]
        names = [str(entry["rfilename"]) for entry in listing["siblings"]]
        if commit is None:
            raise ValueError("its commit is none of git")
    except (KeyError, TypeError, ValueError) as error:
        raise DownloadError(
            f"{_hub_endpoint()} does not list {repository} as the Hub does: "
            f"{one_line(repr(error))}."
        ) from None
    if not any(_WEIGHTS.fullmatch(file.name) for file in files):
        others = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".h5", ".gguf"))]
        raise ConfigError(
            f"{repository} at {revision} has no model.safetensors, the only weights that are read "
            f"here; it has {', '.join(map(one_line, others[:3])) or 'no weights'}. Another "
            f"revision is named as {repository}@REVISION."
        )
    return dataclasses.replace(
        data_set,
        files=tuple(files),
        gated=data_set.gated or bool(listing.get("gated")),
        **({} if data_set.licence else _stated_licence(listing)),
    )


def check_terms(name: str, data_set: DataSet, *, is_accepted: bool) -> None:
    """Checks that weights may be fetched, as far as that is known before the Hub is asked.

    Args:
      name: their name in the command.
      data_set: the weights.
      is_accepted: whether the user accepts their licence.

    Raises:
      ConfigError: if not; the message names the licence, or where access is asked for.
    """
    if not is_accepted:
        raise ConfigError(
            f"{name} comes under the licence {data_set.licence or NONE_STATED!r}, "
            f"{data_set.licence_page or data_set.page}: read it, and accept it with "
            f"--accept-licence."
        )
    if data_set.gated and not _hub_token():
        raise ConfigError(_describe_gated_repository(data_set.hub.partition("@")[0]))


def download_from_hub(address: str, path: Path, **options: Any) -> str:
    """Fetches a file as `download` does; the Hub gets the token, and its refusals are explained.

    Raises:
      DownloadError: as `download`.
    """
    try:
        return download(address, path, secrets=_hub_secret_headers(address), **options)
    except DownloadRefusedError as error:
        raise DownloadError(_describe_refusal(address, error)) from None


def _fetched_commit(folder: Path, repository: str) -> str:
    """Returns the commit that a folder's files are of; "" if it has none.

    Raises:
      ConfigError: if they are of another repository.
    """
    for address in read_addresses(folder):
        match = _RESOLVED.search(address)
        if match is None or match[1] != repository:
            raise ConfigError(
                f"{folder} has files of {address}, not of {repository} ({FETCH_NOTES} there): name "
                f"another folder with --to."
            )
        return match[2]
    return ""


def _read_listing(repository: str, revision: str) -> dict[str, Any]:
    address = f"{_hub_endpoint()}/api/models/{repository}/revision/{quote(revision, safe='')}"
    with tempfile.TemporaryDirectory(prefix="parcel-fetch-") as folder:
        path = Path(folder, "listing.json")
        download_from_hub(f"{address}?blobs=true", path, max_size=_MAX_LISTING)
        try:
            listing = parse_json(path.read_bytes(), address, finite=False)
        except ValueError as error:
            raise DownloadError(str(error)) from None
    if not isinstance(listing, dict):
        raise DownloadError(f"{address} is no description of a repository.")
    return listing


def _remote_file(repository: str, commit: str, entry: Mapping[str, Any]) -> RemoteFile:
    """Returns a file of the listing.

    Files in Git LFS, and all large ones are, have a sha256; others are known by git's digest.
    """
    name, size, lfs = entry["rfilename"], entry["size"], entry.get("lfs")
    digest = f"sha256:{lfs['sha256']}" if lfs else f"git-sha1:{entry['blobId']}"
    if not re.fullmatch(r"sha256:[0-9a-f]{64}|git-sha1:[0-9a-f]{40}", digest):
        raise ValueError(f"{name} has the digest {digest}")
    if type(size) is not int or size < 0:
        raise ValueError(f"{name} has the size {size!r}")
    address = f"{_hub_endpoint()}/{repository}/resolve/{commit}/{name}"
    return RemoteFile(address=address, digest=digest, size=size, path=name)


def _stated_licence(listing: Mapping[str, Any]) -> dict[str, str]:
    """Returns the licence that a repository's card states, as fields of a `DataSet`."""
    card = listing.get("cardData")
    card = card if isinstance(card, dict) else {}
    name, page = card.get("license_name") or card.get("license") or "", card.get("license_link")
    is_page = isinstance(page, str) and page.startswith(("https://", "http://"))
    return {
        "licence": one_line(str(name)),
        "licence_page": one_line(str(page)) if is_page else "",
    }


def _hub_endpoint() -> str:
    address = (os.environ.get(ENDPOINT) or _HUB).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(f"{ENDPOINT} must be an address such as {_HUB}, got {address!r}.")
    return address


def _hub_token() -> str:
    return (os.environ.get(TOKEN) or "").strip()


def _hub_secret_headers(address: str) -> dict[str, str]:
    """Returns the headers for an address that only the Hub may see; {} for any other server."""
    token, host = _hub_token(), urlsplit(address)
    if not token or not address.startswith(f"{_hub_endpoint()}/"):
        return {}
    # Checked here: an error of the HTTP library would quote the token.
    if not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(f"{TOKEN} must be one word of letters, digits and signs; it has others.")
    if host.scheme != "https" and host.hostname not in _LOOPBACK:
        raise ConfigError(
            f"{ENDPOINT} must begin with https:// where {TOKEN} is set, got {_hub_endpoint()}: "
            f"anyone on the way could read the token."
        )
    return {"Authorization": f"Bearer {token}"}


def _describe_gated_repository(repository: str) -> str:
    return (
        f"{repository} is gated: ask for access at {_hub_endpoint()}/{repository}, then set "
        f"{TOKEN} to a token of that account."
    )


def _describe_refusal(address: str, error: DownloadRefusedError) -> str:
    """Returns what a refusal of the Hub means, in one line; of another server, its own message."""
    match = _REQUESTED.search(address)
    if match is None or not address.startswith(f"{_hub_endpoint()}/"):
        return str(error)
    repository, revision = match[1], unquote(match[2])
    # 401 stands for three things, which `X-Error-Code` and `X-Error-Message` tell apart: no token
    # for a gated repository, a wrong token, and no repository of that name that one may see.
    code = error.headers.get("X-Error-Code") or ""
    message = one_line(error.headers.get("X-Error-Message") or "")
    if code == "GatedRepo" and _hub_token():
        return (
            f"{repository} is gated, and the account of {TOKEN} has no access: ask for it at "
            f"{_hub_endpoint()}/{repository}; a fine-grained token needs the right to read gated "
            f"repositories, too."
        )
    if code == "GatedRepo":
        return _describe_gated_repository(repository)
    if code == "RevisionNotFound":
        return f"{repository} has no revision {revision}."
    if error.status == 401 and "credentials" in message:
        return f"The Hub does not accept {TOKEN}, which is misspelt or expired."
    if code == "RepoNotFound" or error.status == 401 or (error.status == 404 and not code):
        return (
            f"{_hub_endpoint()} has no {repository}, or it is private: check the name, and that "
            f"{TOKEN} is of an account that may read it."
        )
    return f"{error} {message}".strip()
