"""Makes artifacts, in any process: takes a step's lease, runs its function, commits."""

import contextlib
import dataclasses
import importlib
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.steps.kind import StepContext
from infra.errors import one_line_message, traceback_text
from infra.progress import Progress
from infra.store.compiled_programs import share_compiled_programs
from infra.store.digest import canonical_json, value_sha256
from infra.store.environment import device_count, jax_has_devices
from infra.store.lease import LeaseHeldError
from infra.store.manifest import Recipe
from infra.store.redact import redact, remember_secrets
from infra.store.scratch import RECIPE, Scratch
from infra.store.store import JOBS, Attempt, Store
from infra.store.variables import leave_out_variables

_NOTED_EVERY = 5.0
"""Time between two notes on this machine of how long an attempt has taken [s]."""

_COST_SAVED_EVERY = 15.0
"""Time between two records in the store of an attempt's cost [s]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StepOutcome:
    """The outcome of one step.

    Attributes:
      name: name of the step.
      reused: whether the artifact was there already.
      error: why there is no artifact; "" if there is one.
      traceback: traceback of that error.
      held: whether it was not started, since the time for starting steps was over.
      busy: whether it was not started, since another process is making it.
    """

    name: str
    reused: bool = False
    held: bool = False
    busy: bool = False
    error: str = ""
    traceback: str = ""


class OtherCodeError(RuntimeError):
    """This process would make a step with other code than was asked for."""


def make(
    store: str,
    recipes: Sequence[Recipe],
    context: Mapping[str, Any],
    token: str | None = None,
    lost: Collection[str] = (),
    alone: bool = False,
) -> Iterator[tuple[str, Progress] | StepOutcome]:
    """Makes steps one after the other; yields (step, its progress) and the outcome of each step.

    An artifact already committed is not made again, and a step that fails does not stop the others.
    Only steps that are made together fail together, such as the budgets of one evaluation, which
    load their checkpoint once.

    Args:
      store: the store [URI].
      recipes: steps to make; none of them reads another one's artifact.
      context: run ids of the orchestrator, for the manifests; "processes", the number that shares a
        step whose kind can be shared, if more than one, and "launcher", the command that starts
        them. Then orders, which no manifest has: "closes", the time after which no step is started,
        since the call may have waited long for a free worker [seconds since the epoch]; "piece",
        (its number, how many there are), has only that piece of the steps made, which the call that
        makes the steps uses later; "wait" False leaves a step that another process is making to
        it, and its outcome says so.
      token: token that names this call as the holder of its steps' leases; None draws one for each.
      lost: tokens of earlier calls whose process died; their leases are taken at once.
      alone: whether this process does nothing else, and has not imported JAX yet. Those of one
        machine share the programs that they compile.
    """
    piece, wait = context.get("piece"), context.get("wait", True)
    if time.time() >= context.get("closes", math.inf):
        yield from (StepOutcome(name=recipe.name, held=True) for recipe in recipes)
        return
    orders = ("closes", "piece", "wait")
    context = {name: value for name, value in context.items() if name not in orders}
    opened = Store(store)
    if alone:
        leave_out_variables()
        share_compiled_programs(opened.cache("jax"))
    if piece is not None:
        yield from _make_piece(opened, recipes, *piece)
        return
    # Devices that this process computes on for others, say in a notebook, are not the steps' cost.
    # A worker may have made other steps before: all its devices are for steps.
    count_devices = device_count if alone or not jax_has_devices() else (lambda: 1)
    for recipe in recipes:
        remember_secrets(json.loads(canonical_json(recipe.config)))
    # Group by group; an error ends its group alone, and every step of it is reported once.
    for group in _group_recipes(recipes):
        reported: set[str] = set()
        try:
            for item in _make_step_group(opened, group, context, token, lost, count_devices, wait):
                if isinstance(item, StepOutcome):
                    reported.add(item.name)
                yield item
        except LeaseHeldError:
            rest = [recipe for recipe in group if recipe.name not in reported]
            if wait:  # The lease was lost meanwhile: it is waited for like any other.
                yield from make(store, rest, context, None, lost, alone)
            else:
                yield from (StepOutcome(name=recipe.name, busy=True) for recipe in rest)
        except Exception as error:  # As text: not every exception survives pickling.
            reason, where = one_line_message(error), traceback_text(error)
            for recipe in group:
                if recipe.name not in reported:
                    yield StepOutcome(name=recipe.name, error=reason, traceback=where)


def _group_recipes(recipes: Sequence[Recipe]) -> list[list[Recipe]]:
    """Returns groups of recipes that are made together, in the order of their first members."""
    from flows.steps.registry import KINDS

    #   evaluate parcel chartqa:val seed=1 budget=16   ┐ one group: only the budget differs
    #   evaluate parcel chartqa:val seed=1 budget=64   ┘
    #   evaluate parcel docvqa:val seed=1 budget=16      another one: other data
    groups: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        kind = KINDS[recipe.kind]
        parts = (
            recipe.kind,
            {r: read for r, read in recipe.inputs.items() if r not in kind.separate_inputs},
            kind.group_value(recipe.config),
            recipe.seed,
            recipe.code,
        )
        # Kinds that cannot be made together get their own key into the digest: a group of one.
        alone = "" if kind.make_together else recipe.key
        groups.setdefault(value_sha256([alone, *parts]), []).append(recipe)
    return list(groups.values())


def _make_piece(
    store: Store, recipes: Sequence[Recipe], number: int, num_pieces: int
) -> Iterator[tuple[str, Progress] | StepOutcome]:
    """Makes one piece of every group that is made in pieces; a piece that exists is kept.

    No lease is taken: two processes that make the same piece get the same result.
    """
    from flows.steps.registry import KINDS

    # A piece is named by its group, and by how many pieces there are: where one lies already, an
    # earlier attempt made it.
    for group in _group_recipes(recipes):
        began, name = time.monotonic(), _piece_name(group, number, num_pieces)
        make_piece = KINDS[group[0].kind].make_piece
        if make_piece is None or store.volatile.total_stat(name).size:
            continue
        try:
            with tempfile.TemporaryDirectory() as folder:
                for recipe in group:
                    _install_user_code(store, recipe)
                    _check_code(store, recipe)
                out = Path(folder)
                contexts = [StepContext(r, store, out, out) for r in group]
                progress_stream = make_piece(contexts, number, num_pieces)
                # Not `yield from`: each progress is sent with the step's name.
                while True:
                    try:
                        yield group[0].name, next(progress_stream)
                    except ValueError as error:
                        _check_inputs(contexts, error)
                        raise
                    except StopIteration as end:
                        took = f"{time.monotonic() - began:.3f} {device_count()}\n"
                        store.volatile.put(name, took.encode() + end.value)
                        break
        except Exception as error:  # As text, as in `make`.
            yield StepOutcome(
                name=group[0].name, error=one_line_message(error), traceback=traceback_text(error)
            )


def _piece_name(group: Sequence[Recipe], number: int, num_pieces: int) -> str:
    """Returns a piece's name in the store, in the jobs' folder: `gc` deletes it when it is old."""
    together = value_sha256(sorted(recipe.key for recipe in group))[:16]
    return f"{JOBS}/pieces-{together}/{number}-of-{num_pieces}"


def _read_group_pieces(store: Store, group: Sequence[Recipe]) -> tuple[list[bytes], float, float]:
    """Returns the pieces made of a group, all of one partition, their time [s] and their cost.

    The cost is in device-seconds.
    """
    #   jobs/pieces-<group>/0-of-3, 1-of-3, 2-of-3
    #
    # The first line of a piece is the time that it took and the number of its devices, which older
    # code left out; the rest is what `make_piece` returned.
    folder = _piece_name(group, 0, 0).rpartition("/")[0]
    names = sorted(store.volatile.listing(folder))
    # Two runs may have cut the group into different numbers of pieces, which do not mix: the number
    # with most pieces made is taken.
    ways = {name.partition("-of-")[2] for name in names}
    chosen = max(ways, key=lambda way: sum(n.endswith(f"-of-{way}") for n in names), default="")
    texts = [store.volatile.read(f"{folder}/{n}") for n in names if n.endswith(f"-of-{chosen}")]
    seconds = cost = 0.0
    for text in texts:
        took, *devices = text.partition(b"\n")[0].split()
        seconds += float(took)
        cost += float(took) * int(devices[0] if devices else 1)
    return [text.partition(b"\n")[2] for text in texts], seconds, cost


def _make_step_group(
    store: Store,
    group: Sequence[Recipe],
    context: Mapping[str, Any],
    token: str | None,
    lost: Collection[str],
    count_devices: Callable[[], int],
    wait: bool,
) -> Iterator[tuple[str, Progress] | StepOutcome]:
    """Makes a group of steps together; yields as `make` does.

    Raises:
      LeaseHeldError: without `wait`, if another process is making any of them; also with it, if
        another process has taken one of their leases, and the work failed for that.
    """
    from flows.steps.registry import KINDS

    # All of a group are held until the last one is committed, so the order is:
    #
    #   take over code, check it ─▶ lease ─▶ there already? ─▶ attempt ─▶ make ─▶ commit each
    kind = KINDS[group[0].kind]
    with contextlib.ExitStack() as leases:
        attempts: list[tuple[StepContext, Attempt, Scratch]] = []
        # In the same order everywhere: no deadlock.
        for recipe in sorted(group, key=lambda recipe: recipe.key):
            _install_user_code(store, recipe)
            _check_code(store, recipe)
            scratch = leases.enter_context(
                store.lock(recipe.key, token=token, lost=lost, wait=wait)
            )
            # Looked up under the lease: another holder may have committed while we waited for it.
            if store.find(recipe.key):
                yield StepOutcome(name=recipe.name, reused=True)
            else:
                attempts.append((*_begin_attempt(store, recipe, scratch, context), scratch))
        if not attempts:
            return
        # The group shares the first member's scratch, where its progress and its clock are kept.
        contexts, (_, _, scratch) = [work for work, *_ in attempts], attempts[0]
        clock = _AttemptClock(scratch.path / "seconds")
        together, earlier = kind.make_together, clock.earlier
        # It may be long until the first unit is done, or until JAX is imported: the step has begun.
        yield group[0].name, Progress(done=0, total=0)
        # Pieces that parallel jobs made are part of the work, and so is the time they took.
        piece_cost = 0.0
        if kind.make_piece is not None:
            contexts[0].pieces, seconds, piece_cost = _read_group_pieces(store, group)
            earlier += seconds
        costs = _AttemptCosts([attempt for _, attempt, _ in attempts], count_devices, context)
        try:
            for progress in together(contexts) if together else kind.make(contexts[0]):
                clock.note()
                costs.note(progress)
                # Copied to the store, so that another machine can resume from here.
                if progress.resumable:
                    scratch.save()
                yield group[0].name, progress
        except Exception as error:
            # A holder that was stopped for long: another process took the lease, and the scratch
            # with it. Whatever failed then, the step itself has not.
            if not all(step_scratch.is_held() for *_, step_scratch in attempts):
                raise LeaseHeldError("the step is another process's now.") from error
            _check_inputs(contexts, error)
            raise
        finally:  # A step may fail before its first progress, or long after its last one.
            costs.count()
            clock.end()
        for work, attempt, step_scratch in attempts:
            attempt.earlier_seconds, attempt.piece_device_seconds = earlier, piece_cost
            attempt.counts, attempt.content = work.counts, work.content
            attempt.accelerator = work.accelerator
            attempt.commit(context)
            # Progress is of no use once the artifact is committed; before that it must stay.
            step_scratch.clear()
            yield StepOutcome(name=attempt.step.name)


def _check_inputs(contexts: Sequence[StepContext], error: Exception) -> None:
    """Sets a damaged input aside, if that is what an error is about.

    Raises:
      DamagedArtifactError: if it is; it says what became of the input.
    """
    inputs = {artifact.key: artifact for work in contexts for artifact in work.artifacts.values()}
    for artifact in inputs.values():
        artifact.check_named(str(error))


def _begin_attempt(
    store: Store, recipe: Recipe, scratch: Scratch, context: Mapping[str, Any]
) -> tuple[StepContext, Attempt]:
    """Begins an attempt at a step whose lease is held."""
    from flows.steps.registry import KINDS

    # The attempt writes into a folder of its own and becomes the artifact at its commit; scratch is
    # what the next attempt may resume from.
    attempt = Attempt(store, recipe)
    if KINDS[recipe.kind].draws_batches:
        # A training's page, and `parcel lineage losses`, know it by this until it has a manifest.
        text = json.dumps(redact(json.loads(canonical_json(recipe))))
        (scratch.path / RECIPE).write_text(text)
    work = StepContext(
        recipe,
        store,
        attempt.path,
        scratch.path,
        attempt.put,
        f"{store.uri}/{scratch.shared}",
        lambda name, source, file: attempt.adopt(name, f"{scratch.shared}/{source}", file),
        int(context.get("processes", 1)),
        context.get("launcher", ""),
    )
    return work, attempt


class _AttemptClock:
    """Keeps the time that killed attempts at a step took, which is part of the artifact's cost."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.earlier = float(path.read_text()) if path.exists() else 0.0
        self._began = self._noted = time.monotonic()

    def note(self) -> None:
        """Writes the time so far to disk, every few seconds at most."""
        now = time.monotonic()
        if now - self._noted > _NOTED_EVERY:
            self._noted = now
            self._write_attempt_seconds()

    def end(self) -> None:
        """Writes the time to the end of the attempt, if any was written."""
        # The folder may be another holder's now, who counts from what this one wrote last.
        with contextlib.suppress(OSError):
            if self._path.exists():
                self._write_attempt_seconds()

    def _write_attempt_seconds(self) -> None:
        # Replaced whole, so that a kill in between leaves the earlier number, and not half of one.
        partial = self._path.with_suffix(".partial")
        partial.write_text(str(self.earlier + time.monotonic() - self._began))
        partial.replace(self._path)


class _AttemptCosts:
    """Keeps the cost of the attempts of one group, which compute together on the same devices.

    Args:
      attempts: the attempts.
      count_devices: returns the number of devices that this process computes on.
      context: as in `make`.
    """

    def __init__(
        self,
        attempts: Sequence[Attempt],
        count_devices: Callable[[], int],
        context: Mapping[str, Any],
    ) -> None:
        self._attempts, self._count_devices = attempts, count_devices
        self._saved = time.monotonic()
        for attempt in attempts:
            # Everything is made in one go; each artifact is charged its equal share.
            attempt.share = 1 / len(attempts)
            # Until processes that train together report, each has at least one device.
            attempt.devices = int(context.get("processes", 1))

    def count(self, reported: int = 0) -> None:
        """Counts the devices that compute now, of which other processes may have `reported`."""
        devices = max(reported, self._count_devices())
        for attempt in self._attempts:
            attempt.devices = max(attempt.devices, devices)

    def note(self, progress: Progress) -> None:
        """Counts the devices, and every few seconds records the costs in the store."""
        self.count(progress.devices)
        if time.monotonic() - self._saved >= _COST_SAVED_EVERY:
            self._saved = time.monotonic()
            for attempt in self._attempts:
                attempt.save_cost()


def import_step_code(kind: str, config: Any) -> dict[str, str]:
    """Imports the code of a kind, and returns module -> digest of what was imported.

    Afterwards an edit of a file does not affect this process. Before, it would: imports are inside
    functions, and a study may run for days before it reaches one.
    """
    from flows.steps.registry import step_code
    from infra.source_code import checkout, read_checkout

    reached = step_code(kind, config, checkout())
    if any(module not in sys.modules for module in reached):
        # Modules not yet imported come from the disk as it is now, so the digests must, too.
        reached = step_code(kind, config, read_checkout())
        for module in reached:
            importlib.import_module(module)
    return reached


def _install_user_code(store: Store, recipe: Recipe) -> None:
    """Takes the user's own code over from the sources of the run, if this process lacks it."""
    from flows.steps.registry import user_modules
    from flows.steps.user_code import install_user_code
    from infra.source_code import checkout

    if recipe.source and any(m not in checkout() for m in user_modules(recipe.kind, recipe.config)):
        install_user_code(store.open_source(recipe.source))


def _check_code(store: Store, recipe: Recipe) -> None:
    """Refuses to make a step with other code or libraries than its key states."""
    from flows.steps.registry import step_code, user_modules
    from flows.steps.user_code import library_versions
    from infra.source_code import Tree, code_sha256

    # Library versions first: the error can name a version, but of a digest only that it differs.
    for module in user_modules(recipe.kind, recipe.config):
        for name, version in library_versions(module).items():
            if (wanted_version := recipe.libraries.get(name)) != version:
                raise OtherCodeError(
                    f"step {recipe.name!r} must be made with {name} {wanted_version}, but this "
                    f"process has {version}; install the same version."
                )
    modules = import_step_code(recipe.kind, recipe.config)
    if recipe.code == code_sha256(modules):
        return
    wanted_code = step_code(recipe.kind, recipe.config, Tree(store.open_source(recipe.source)))
    # Only on this failing path is the asked code read, to name the modules that differ.
    differ = sorted(
        name for name in wanted_code | modules if wanted_code.get(name) != modules.get(name)
    )
    raise OtherCodeError(
        f"step {recipe.name!r} must be made with code {recipe.code[:8]}, but this process has "
        f"other code in {', '.join(differ) or 'no module it can name'}; start it from the same "
        f"checkout."
    )
