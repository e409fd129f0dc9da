"""`parcel doctor`: checks what is installed, reachable and writable, and which engines work."""

import dataclasses
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from flows.config.tracker import missing_tracker
from flows.machine.gpu import examine_gpus
from flows.pages.overview import server_errors_text
from infra.errors import one_line_message
from infra.file_locks import NoLocksError
from infra.prefect.server import running, service_errors
from infra.processes.module import (
    PACKAGES,
    hiding_files,
    module_command,
    python_path,
    stated_path,
)
from infra.store.environment import git_state
from infra.store.lease import hold_lease
from infra.store.store import Store, canonical_uri
from infra.store.stored_folder import BUCKET_SCHEME
from infra.store.variables import xla_flags_problem
from pipelines.records.tf_check import CURE as TF_CURE

_PACKAGE = "parcel-pipeline"
_ENGINE_TIMEOUT = 180.0
"""Longest trial of an engine [s]; Ray takes 20 s to start on a loaded two-core machine."""
_ANSWER_TIMEOUT = 5.0
"""Longest wait for a server's answer [s]."""
_SKEW = 30.0
"""Largest difference allowed between this clock and the store's [s]: leases lapse after 120 s."""
_FAILS_STILL = 600.0
"""Age of a server's newest error up to which it counts as failing still [s]."""
_FREE = 10e9
"""Free space below which a note is given [bytes]."""

_STORE_CURES = {
    "gs": "log in with `gcloud auth application-default login`, and ask for the role "
    "roles/storage.objectAdmin on the bucket",
    "s3": "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION, and AWS_ENDPOINT_URL where "
    "the bucket is not Amazon's; they need the rights to list, read, write and delete",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or use an identity with "
    "the role Storage Blob Data Contributor on the container",
    "folder": "name a folder you may write to: --store, or PARCEL_STORE",
}
"""Kind of store -> what helps if it cannot be used."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetupFinding:
    """Result of one check.

    Attributes:
      what: the thing that was checked, in a word.
      state: "ok"; "note", which stops nothing; "bad", which stops a study that needs it.
      detail: what the check found.
      cure: what to do about it; "" where nothing need be done.
    """

    what: str
    state: Literal["ok", "note", "bad"]
    detail: str
    cure: str = ""


def examine_setup(uri: str, config: Any, engines: Sequence[str]) -> Iterator[SetupFinding]:
    """Checks packages, store, server, study and engines; yields one finding after the other.

    Args:
      uri: the store [URI].
      config: the study whose trackers, raw data and cluster are checked; None checks none.
      engines: names of the engines to try, from `engines.ENGINES`.
    """
    # From what everything needs to what only some studies do, so that the first BAD is most likely
    # the cause.
    yield from _check_hidden_packages()
    yield _check_python()
    yield _check_packages()
    if refused := git_state().get("refused"):
        yield SetupFinding(
            what="commit", state="note", detail=f"not recorded in manifests: {refused}"
        )
    if gpus := examine_gpus():
        state, detail, cure = gpus
        yield SetupFinding(what="gpu", state=state, detail=detail, cure=cure)
    if problem := xla_flags_problem(os.environ.get("XLA_FLAGS", "")):
        detail, _, cure = problem.rpartition(": ")
        yield SetupFinding(what="xla", state="bad", detail=detail, cure=cure.rstrip("."))
    yield from _check_store(uri)
    yield from _check_prefect(uri)
    if config is not None:
        yield from _check_study_inputs(config)
    for name in engines:
        yield _check_tf(uri) if name == "tf" else _check_engine(name)


def _check_python() -> SetupFinding:
    # The project's own requirement, as it was installed with it.
    interpreter = f"{sys.version.split()[0]} at {sys.executable}"
    try:
        accepted = importlib.metadata.metadata(_PACKAGE)["Requires-Python"]
    except importlib.metadata.PackageNotFoundError:
        accepted = ""  # The finding on packages says that the project is not installed.
    if SpecifierSet(accepted).contains(".".join(map(str, sys.version_info[:3]))):
        return SetupFinding(what="python", state="ok", detail=interpreter)
    return SetupFinding(
        what="python",
        state="bad",
        detail=f"{interpreter}, not {accepted}",
        cure="run make setup PYTHON=/path/to/python with one of these",
    )


def _check_packages() -> SetupFinding:
    """Compares the installed packages with this package's requirements."""
    try:
        requirements = [Requirement(text) for text in importlib.metadata.requires(_PACKAGE) or ()]
    except importlib.metadata.PackageNotFoundError:
        return SetupFinding(
            what="packages", state="bad", detail=f"{_PACKAGE} is not installed", cure="make setup"
        )
    # Extras are optional, and markers rule out what is for another platform.
    needed = [
        requirement
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    wrong = []
    for requirement in needed:
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, not {requirement.specifier}")
    if wrong:
        return SetupFinding(
            what="packages", state="bad", detail="; ".join(wrong), cure="make setup"
        )
    version = importlib.metadata.version(_PACKAGE)
    return SetupFinding(
        what="packages", state="ok", detail=f"{_PACKAGE} {version} and what it needs"
    )


def _check_hidden_packages() -> Iterator[SetupFinding]:
    """Finds files that PYTHONPATH puts before the packages of this project, and what they need."""
    distributions = importlib.metadata.packages_distributions()
    try:
        requirements = importlib.metadata.requires(_PACKAGE) or ()
    except importlib.metadata.PackageNotFoundError:
        requirements = ()  # The finding on packages says so.
    needed = {canonicalize_name(Requirement(text).name) for text in requirements}
    others = [
        package
        for package, names in distributions.items()
        if needed & set(map(canonicalize_name, names)) and package not in PACKAGES
    ]
    for package, file in hiding_files([*PACKAGES, *others], stated_path()):
        is_own = package in PACKAGES
        yield SetupFinding(
            what="path",
            state="bad" if is_own else "note",  # A library may be replaced on purpose.
            detail=f"{file} hides the package {package}{' of parcel-pipeline' if is_own else ''}",
            cure="take its folder off PYTHONPATH, or rename it",
        )


def _check_store(uri: str) -> Iterator[SetupFinding]:
    """Opens the store, writes, reads and deletes a file, takes a lease, and compares the clocks."""
    try:
        store = Store(uri)
        name = f"scratch/doctor-{uuid.uuid4().hex}"
        store.files.put(name, b"written by parcel doctor")
        is_replaced = store.files.create_if_absent(name, b"created by parcel doctor")
        read, modified = store.files.read(name), store.files.stat(name).modified
        store.files.remove(name)
        store.check_locks()
        with hold_lease(store.volatile, f"{name}.lease", wait=False) as lease:
            lease.renew()
    except NoLocksError as error:
        yield SetupFinding(what="store", state="bad", detail=str(error))
        return
    except (OSError, ValueError) as error:
        cure = _STORE_CURES[uri.partition("://")[0] if uri.startswith(BUCKET_SCHEME) else "folder"]
        yield SetupFinding(what="store", state="bad", detail=one_line_message(error), cure=cure)
        return
    # A store that loses or alters bytes shows here, before a study relies on it; so does a server
    # that takes no notice of conditions, on which two processes would both win.
    if is_replaced:
        yield SetupFinding(
            what="store",
            state="bad",
            detail=f"{store.uri} replaces a file that is to be created only if there is none",
            cure="use a server that knows If-None-Match, as Amazon's, R2 and recent MinIO do",
        )
    elif read != b"written by parcel doctor":
        yield SetupFinding(
            what="store",
            state="bad",
            detail=f"{store.uri} returned other bytes than were written",
            cure="check the disk, and the network or file system in between",
        )
    else:
        yield SetupFinding(what="store", state="ok", detail=f"{store.uri} can be read and written")
    # Time at the store when it stored the file, against ours when it answered.
    off = abs(time.time() - modified / 1e9)
    if off > _SKEW:
        yield SetupFinding(
            what="clock",
            state="bad",
            detail=f"it differs from the store's by {off:.0f} s",
            cure="set this machine's clock by NTP; leases lapse by the store's clock",
        )
    folder = next(path for path in (store.state, *store.state.parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    yield SetupFinding(
        what="disk",
        state="note" if free < _FREE else "ok",
        detail=f"{free / 1e9:.0f} GB free at {folder}",
        cure="parcel gc lists what can be deleted" if free < _FREE else "",
    )


def _check_prefect(uri: str) -> Iterator[SetupFinding]:
    # A named server counts; without one, the server that `parcel serve` left a note of.
    api_url = named = os.environ.get("PREFECT_API_URL")
    if not api_url:
        try:
            note = running(Store(uri).state)
        except (OSError, ValueError):
            return  # The finding on the store says why.
        if note is None:
            yield SetupFinding(
                what="prefect",
                state="ok",
                detail="no server runs for the store; a run "
                "starts its own, `parcel serve` one that stays",
            )
            return
        api_url = note.api
    # Any answer will do, even a refusal without a login: the question is whether a server is there.
    why = _server_failure(f"{api_url}/health")
    errors = None if named else service_errors(Store(uri).state)
    if why:
        yield SetupFinding(
            what="prefect",
            state="bad",
            detail=f"{api_url} does not answer: {why}",
            cure="start it, or unset PREFECT_API_URL",
        )
    elif errors:
        # Its services run every few seconds, so one that still fails has failed just now.
        yield SetupFinding(
            what="prefect",
            state="bad" if errors.age < _FAILS_STILL else "note",
            detail=f"{api_url} answers, and has {server_errors_text(errors)}",
            cure="schedules, late runs or alerts may not work; make setup installs the versions "
            "that do",
        )
    else:
        yield SetupFinding(what="prefect", state="ok", detail=f"{api_url} answers")


def _check_study_inputs(config: Any) -> Iterator[SetupFinding]:
    """Checks what a study uses outside the store: its trackers, its raw data and its cluster."""
    for tracker in config.track:
        cure = missing_tracker(tracker)
        detail = f"{tracker} is {'not ' if cure else ''}installed"
        yield SetupFinding(what="track", state="bad" if cure else "ok", detail=detail, cure=cure)
    # Listed, not read: a missing or an empty folder shows at once.
    root = config.data_root
    if root is not None:
        from infra.store.raw_path import raw_path

        try:
            folders = sorted(path.name for path in raw_path(root).iterdir())
            detail, is_bad = f"{root} has {', '.join(folders[:8]) or 'nothing'}", not folders
        except (OSError, ValueError) as error:
            detail, is_bad = one_line_message(error), True
        yield SetupFinding(
            what="data_root",
            state="bad" if is_bad else "ok",
            detail=detail,
            cure="download published data with parcel data fetch" if is_bad else "",
        )
    # Only a job server can be asked by HTTP; a head named by host:port cannot.
    address = config.compute.ray_address
    if address and address.startswith("http"):
        why = _server_failure(f"{address.rstrip('/')}/api/version")
        yield SetupFinding(
            what="cluster",
            state="bad" if why else "ok",
            detail=f"{address} does not answer: {why}" if why else f"{address} answers",
            cure="start its head with `ray start --head`, with ray[default] installed"
            if why
            else "",
        )


def _server_failure(url: str) -> str:
    """Returns why a server does not answer; "" if it does, be it with an HTTP error below 500."""
    try:
        urllib.request.urlopen(url, timeout=_ANSWER_TIMEOUT).close()
    except urllib.error.HTTPError as error:
        return "" if error.code < 500 else f"HTTP error {error.code}"
    except (OSError, ValueError) as error:
        return one_line_message(error)
    return ""


def _check_tf(uri: str) -> SetupFinding:
    """Reads a shard with TensorFlow, which no study needs and which is an extra."""
    if importlib.util.find_spec("tensorflow") is None:
        return SetupFinding(
            what="tf",
            state="note",
            detail="TensorFlow is not installed; only reading datasets with tf.data needs it",
            cure=TF_CURE,
        )
    try:
        uri = canonical_uri(uri)
    except ValueError:
        uri = ""  # The finding on the store says why.
    return _check_engine("tf", uri)


def _check_engine(name: str, *arguments: str) -> SetupFinding:
    """Tries an engine in a process of its own, so that a hang or a crash stays there."""
    words = [name, *arguments]
    cure = (
        f"python -m flows.machine.engines {shlex.join(words)} shows the full error; make setup "
        f"installs it"
    )
    try:
        tried = subprocess.run(
            module_command("flows.machine.engines", *words),
            env={**os.environ, "PYTHONPATH": python_path()},
            capture_output=True,
            text=True,
            timeout=_ENGINE_TIMEOUT,
        )
    except subprocess.TimeoutExpired:
        detail = f"no answer within {_ENGINE_TIMEOUT:.0f} s"
        return SetupFinding(what=name, state="bad", detail=detail, cure=cure)
    if tried.returncode == 0:
        return SetupFinding(what=name, state="ok", detail=tried.stdout.strip().splitlines()[-1])
    # The last line of a traceback is its error.
    error_lines = tried.stderr.strip().splitlines() or [f"it ended with code {tried.returncode}"]
    return SetupFinding(what=name, state="bad", detail=error_lines[-1], cure=cure)
