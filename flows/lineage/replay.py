"""`parcel lineage replay`: makes an artifact again in a fresh store, and compares the two.

The code comes from the source tree in the store that made the artifact, not from the checkout. A
worker process runs that tree.
"""

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from flows.lineage.diff import LineageDifference, compare_lineages
from flows.lookup.target import LookupTarget
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import AUTOTUNING, FitSpec
from flows.steps.labels import labels_of
from flows.steps.registry import full_config, kind_of, typed_config, user_modules
from flows.steps.remake import RemakeError, remake_step
from flows.steps.user_code import install_user_code
from infra.errors import ConfigError
from infra.store.digest import canonical_json, value_sha256
from infra.store.lineage import inputs_first, lineage_edges
from infra.store.manifest import Manifest, Recipe
from infra.store.store import Artifact, Store, manifest_name
from infra.store.stored_folder import open_stored_folder
from infra.store.variables import recorded_variables, with_variables
from model.eval.predictions_file import read_predictions

_ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"

_CPU = "cpu"
"""JAX's name of the CPU, both as a platform and as a kind of device."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayOutcome:
    """The outcome of making an artifact again.

    Attributes:
      was: manifest of the original.
      now: manifest of the new artifact.
      differences: differences between the two, in how they were made and in their bytes.
      score: (score then, score now) for scores and guesses whose contents differ; else None.
      same_answers: share of equal answers for predictions whose contents differ; None otherwise.
    """

    was: Manifest
    now: Manifest
    differences: tuple[LineageDifference, ...]
    score: tuple[float, float] | None = None
    same_answers: float | None = None

    @property
    def is_same(self) -> bool:
        """Whether both have the same contents."""
        # The contents of predictions name their checkpoint, which may have been made again, too.
        return self.was.content == self.now.content or self.was.files == self.now.files

    @property
    def elsewhere(self) -> list[LineageDifference]:
        """Differences between the machines and library versions; with any, bytes may differ."""
        return [d for d in self.differences if d.sort in ("hardware", "version")]

    def is_near(self, tolerance: float) -> bool:
        """Returns whether the contents are the same, or close enough for another kind of machine.

        On another kind of machine, or with other library versions, a score may be off by
        `tolerance` points, and artifacts without a score, such as checkpoints, may differ freely.
        """
        if self.is_same or not self.elsewhere:
            return self.is_same
        return self.score is None or abs(self.score[0] - self.score[1]) <= tolerance

    def line(self) -> str:
        """Returns the outcome as a line of text."""
        # From the best outcome to the worst: the same bytes; the same contents, and another log;
        # other contents, for which a machine that differs is the likely reason and is named.
        took = f"in {self.now.seconds:.1f} s, {self.was.seconds:.1f} s then"
        head = f"{self.was.name} {self.was.key}, made again on {_machine_name(self.now)} {took}:"
        if self.was.files == self.now.files:
            return f"{head} the same bytes, {len(self.was.files)} files"
        if self.is_same:  # Files outside the contents differ, such as a training's log with times.
            names = {*self.was.files, *self.now.files}
            other = sorted(n for n in names if self.was.files.get(n) != self.now.files.get(n))
            return f"{head} the same contents, and other bytes in {', '.join(other)}"
        text = f"{head} other contents"
        if self.score:
            text += ": score {:.4f} then, {:.4f} now".format(*self.score)
        if self.same_answers is not None:
            text += f": {100 * self.same_answers:.1f} % of answers the same"
        differences_text = ", ".join(f"{d.what} {d.was} → {d.now}" for d in self.elsewhere)
        return (
            f"{text}; another kind of machine: {differences_text}"
            if differences_text
            else f"{text}; the same machine"
        )


def replay_artifacts(
    store: Store,
    target: LookupTarget,
    fresh: Store,
    *,
    from_raw: bool,
    steps: Mapping[str, Step] = MappingProxyType({}),
) -> Iterator[ReplayOutcome]:
    """Makes artifacts again, and yields each compared with the original.

    Args:
      store: the store of the originals.
      target: an artifact, or a cell, which stands for the predictions and the score of each seed.
      fresh: an empty store on this machine.
      from_raw: whether to make all their ancestors again first, from the raw files; else their
        direct inputs are taken from `store`.
      steps: name -> step as its run had it. Steps hold settings that manifests leave out because
        they are no part of an identity: the place of raw data, and settings such as `remat`, which
        change how sums are rounded. Artifacts of no step here are made by their manifests alone.

    Raises:
      ConfigError: if the source tree of one of them was not kept, or this version cannot read its
        config.
      ReplayError: if one cannot be made.
    """
    remade: dict[str, Artifact] = {}
    # Inputs come before what reads them, so an input was either made again already, or is a
    # direct input that is taken from the old store.
    for artifact in _replay_order(store, target, from_raw):
        manifest = artifact.manifest
        if not manifest.source:
            raise ConfigError(f"{manifest.name} cannot be made again: its sources were not kept.")
        inputs = {}
        for role, entry in manifest.inputs.items():
            if entry.key not in remade:
                remade[entry.key] = _link_artifact(fresh, store.get(entry.key))
            inputs[role] = remade[entry.key].as_input
        tree = store.open_source(manifest.source)
        # The study's step has settings that no manifest holds. Without one, or if its config is not
        # the artifact's, the manifest's config is all there is.
        step = steps.get(manifest.name)
        if step is None or json.loads(canonical_json(step.config)) != full_config(manifest):
            if user_modules(manifest.kind, manifest.config):
                # Reading the config of a user's connector imports its code.
                install_user_code(tree)
            step = Step(
                kind=manifest.kind,
                labels=labels_of(manifest),
                config=typed_config(manifest.kind, manifest.config),
            )
        config = step.config
        if isinstance(config, FitSpec):
            config = config.as_recorded(manifest.counts)
        # The digest of the code is the original's: this recipe has its identity, and so its key.
        recipe = Recipe(
            kind=manifest.kind,
            name=manifest.name,
            inputs=inputs,
            config=config,
            seed=manifest.seed,
            libraries=manifest.libraries,
            code=manifest.code,
            source=fresh.save_source(tree),
            location=step.location,
            labels=step.labels.to_json(),
        )
        try:
            processes = manifest.environment.get("processes", 1)
            context = {"processes": processes} if processes > 1 else {}
            now = remake_step(fresh, recipe, tree, context, _recorded_environment(manifest))
        except RemakeError as error:
            raise RemakeError(f"{manifest.name} cannot be made again: {error}") from None
        remade[artifact.key] = now
        yield _compare_replayed(store, artifact, fresh, now)


def autotuning_differences(was: Artifact, now: Artifact) -> Iterator[LineageDifference]:
    """Yields how the kernels differ that XLA chose by their time on the GPU of each; one, or none.

    Each names all that its machine had timed, so only kernels that both name are compared.
    """
    if not all(AUTOTUNING in artifact.manifest.files for artifact in (was, now)):
        return
    folders = (open_stored_folder(artifact.uri).local_folder(AUTOTUNING) for artifact in (was, now))
    then, again = (json.loads((folder / AUTOTUNING).read_text()) for folder in folders)
    common = then.keys() & again.keys()
    others = {name for name in common if then[name] != again[name]}
    if others:
        digests = (value_sha256({n: side[n] for n in others})[:8] for side in (then, again))
        what = f"autotuning of {len(others)} in {len(common)} kernels"
        yield LineageDifference(sort="hardware", what=what, was=next(digests), now=next(digests))


def _replay_order(store: Store, target: LookupTarget, from_raw: bool) -> list[Artifact]:
    """Returns the artifacts to make again, inputs first."""
    if not from_raw:
        # The score of a cell is only as good as its answers, so these are made again before it.
        below = target.artifacts if target.seeds else ()
        keys = (artifact.manifest.inputs["predictions"].key for artifact in below)
        return [*map(store.get_cached, keys), *target.artifacts]
    reads: dict[str, set[str]] = {}
    for artifact in target.artifacts:
        reads.setdefault(artifact.key, set())
        for below, _, product in lineage_edges(store, artifact.key):
            reads.setdefault(product.key, set()).add(below.key)
    return [store.get_cached(key) for key in inputs_first(reads)]


def _link_artifact(fresh: Store, artifact: Artifact) -> Artifact:
    """Adds another store's artifact to `fresh`, as a link to its files instead of a copy."""
    folder = fresh.state / artifact.folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(artifact.path, target_is_directory=True)
    fresh.files.create_if_absent(manifest_name(artifact.key), artifact.manifest.to_json().encode())
    return fresh.get(artifact.key)


def _recorded_environment(manifest: Manifest) -> dict[str, str]:
    """Returns this process's environment with the original's flags, threads, platform and others.

    Results depend on all of them: what the original did not have is taken away, unless it is older
    than the record. An artifact made on an accelerator is made again on whatever JAX finds here, or
    on the platform that the environment names.
    """
    hardware = manifest.environment.get("hardware", {})
    flags = hardware.get("xla_flags", "")
    threads = hardware.get("threads") or ("1" if _ONE_THREAD in flags else str(os.cpu_count()))
    platform = {"JAX_PLATFORMS": _CPU} if hardware.get("accelerator") == _CPU else {}
    own = {"XLA_FLAGS": flags, "NPROC": threads, "OMP_NUM_THREADS": threads, **platform}
    recorded = hardware.get("variables", recorded_variables(os.environ))
    return {**with_variables(os.environ, recorded), **own}


def _machine_name(manifest: Manifest) -> str:
    """Returns the accelerator that made an artifact, or the processor and its number of threads."""
    hardware = manifest.environment.get("hardware", {})
    accelerator = hardware.get("accelerator") or _CPU
    if accelerator != _CPU:
        return accelerator
    processor = hardware.get("cpu") or hardware.get("machine") or "an unrecorded processor"
    return f"{processor}, {hardware.get('threads', '?')} threads,"


def _compare_replayed(store: Store, was: Artifact, fresh: Store, now: Artifact) -> ReplayOutcome:
    then, again = (LookupTarget(name=a.key, artifacts=(a,)) for a in (was, now))
    differences = compare_lineages(store, then, again, fresh).differences
    score = same_answers = None
    if was.manifest.content != now.manifest.content:
        holds = kind_of(was.manifest).holds
        if holds in ("scores", "guesses"):
            score = float(was.manifest.counts["score"]), float(now.manifest.counts["score"])
        if holds == "answers":
            before, after = _answer_texts(was), _answer_texts(now)
            same = sum(after.get(key) == text for key, text in before.items())
            same_answers = same / max(len(before), 1)
    return ReplayOutcome(
        was=was.manifest,
        now=now.manifest,
        differences=(*differences, *autotuning_differences(was, now)),
        score=score,
        same_answers=same_answers,
    )


def _answer_texts(artifact: Artifact) -> dict[str, str]:
    return {row["id"]: row["prediction"] for row in read_predictions(artifact.path)}
