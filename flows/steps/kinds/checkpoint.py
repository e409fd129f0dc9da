"""A checkpoint: one stage of training, from its inputs to its parameters.

Files:
  params-*.safetensors: parameters, a gigabyte a file
  params.json: where each array lies, with a checksum of every megabyte
  model.json: the model's config
  digest.txt: the digest of the parameters
  tokenizer.model: the study's
  mask_codec.npz: the study's, if it has one
  metrics.jsonl: a line every `log_steps`
  events/*: the same lines for TensorBoard
  watch.jsonl: held-out losses and the probe, where `watch` is set
  samples.jsonl: answers to held-out questions, by step, where `sample_steps` is set
  profile/*: traces, where `--profile` asked for them
  autotuning.json: of a GPU, kernel -> digest of XLA's choice, where `compute.deterministic` is off
"""

import contextlib
import dataclasses
import hashlib
import json
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.steps.families import FAMILY_REGISTRIES, model_entries
from flows.steps.kind import Kind, StepContext
from infra.gang.launcher import LauncherGang
from infra.gang.local import LocalGang
from infra.gang.messages import read_message
from infra.gang.supervise import Gang, supervise
from infra.processes.module import module_command
from infra.progress import Progress
from infra.store.backend import ByteSource
from infra.store.compiled_programs import autotuning_digests
from infra.store.digest import NOT_IDENTITY, file_sha256
from infra.store.manifest import SHOWN, File
from infra.store.stored_folder import BUCKET_SCHEME, open_backend, open_stored_folder
from model import files
from model.config import ModelConfig
from model.connector.registry import class_and_routing, connector_modules
from model.train.config import RECORDED, TrainConfig
from model.watch.config import WatchConfig

if TYPE_CHECKING:
    from model.checkpoint.params_files import Put
    from model.train.loop import StagePaths

WATCHED = "watched/"
"""Prefix of the role of a dataset that is only evaluated during training."""
PROBE = ("probe/train", "probe/eval")
"""Roles of the datasets of a probe."""

AUTOTUNING = "autotuning.json"
"""File beside a checkpoint whose kernels XLA chose by their time; no part of its contents."""

_CONNECTORS = connector_modules.__module__

_OUT = "out"
"""Folder inside the gang's folder that members send the checkpoint's files to."""
_ALL = "sent.json"
"""File in it that is sent last: name -> sha256 and size of each file."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitSpec:
    """One training stage, and its evaluations during training.

    Attributes:
      model: config of the model to train.
      train: the training recipe.
      watch: the evaluations during training; None for none.
      profile: first and last training step that are traced; (0, 0) for none.
      deterministic: whether programs of a GPU give the same bits each time.
    """

    model: ModelConfig
    train: TrainConfig
    watch: WatchConfig | None = None
    profile: tuple[int, int] = dataclasses.field(default=(0, 0), metadata=NOT_IDENTITY)
    deterministic: bool = dataclasses.field(default=True, metadata=NOT_IDENTITY)

    def as_recorded(self, counts: Mapping[str, Any]) -> "FitSpec":
        """Returns the spec with the numbers that `auto` stood for in a training, by its record."""
        numbers: dict[str, Any] = {name: counts.get(name) for name in RECORDED}
        return dataclasses.replace(self, train=dataclasses.replace(self.train, **numbers))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """One training stage in the form that any process can run, if it can reach its places.

    A place is a folder, or a prefix in a bucket.

    Attributes:
      spec: the model, the training recipe and the evaluations.
      seed: seed of every random draw.
      data: places of prepared datasets.
      init: place of the checkpoint to start from; None starts from random parameters.
      tokenizer: place of the tokenizer.
      mask_codec: place of the mask codec; None where nothing has masks.
      scratch: folder for logs; "" gives each process a folder of its own.
      points: place for resumable checkpoints.
      out: an existing folder, which becomes a checkpoint's; "" sends the files to the worker (see
        `_CheckpointSender`).
      held_out: places of the datasets that are only evaluated.
      probe: places of the probe's training and scored records; None where there is no probe.
      shown: place of the benchmark whose first records it answers meanwhile; None for none.
      code: digest of the code that trains it [hex].
      user_code: path -> bytes of the user's own code that it needs.
    """

    spec: FitSpec
    seed: int
    data: tuple[str, ...]
    init: str | None
    tokenizer: str
    mask_codec: str | None
    scratch: str
    points: str
    out: str
    held_out: tuple[str, ...] = ()
    probe: tuple[str, str] | None = None
    shown: str | None = None
    code: str = ""
    user_code: Mapping[str, bytes] = dataclasses.field(default_factory=dict)


def make(work: StepContext) -> Iterator[Progress]:
    """Trains the stage of a `FitSpec`, starting from the input `init` if there is one.

    With `work.processes` above 1, that many processes train it together. `work.launcher` starts
    them if there is one, and this process only supervises them.
    """
    from flows.steps.events import EventFile
    from flows.steps.user_code import user_files_of

    spec: FitSpec = work.config
    # Hosts that a launcher reaches need share nothing but the bucket.
    is_apart = work.processes > 1 and bool(work.launcher) and work.shared.startswith(BUCKET_SCHEME)
    places = work.stored if is_apart else work.places
    # All that a training needs, as values and places: it is the same whether this process trains,
    # or members on other hosts do.
    stage = dataclasses.replace(
        stage_of(spec, work.seed or 0, places, points=f"{work.shared}/points"),
        scratch=str(work.scratch),
        out=str(work.out),
        code=work.code,
        user_code=user_files_of(CHECKPOINT.user_modules(spec)),
    )
    steps, loss = 0, float("nan")
    with contextlib.ExitStack() as stack:
        items = train(stage, work.put)
        if work.processes > 1:
            items = stack.enter_context(contextlib.closing(_train_with_gang(stage, work, is_apart)))
        events = stack.enter_context(contextlib.closing(EventFile(work.scratch, work.out)))
        # The logs are turned into an event file as they grow, and once more when the last is
        # written.
        for item in items:
            steps, loss = item.done, item.loss
            events.follow()
            yield item
        events.follow()
    work.counts.update(steps=steps, loss=round(loss, 4), deterministic=spec.deterministic)
    # What no identity has, but what decides the last bits: rows that a device computed at a time,
    # and places for their texts, as `auto` chose them.
    if log := (work.out / files.METRICS).read_text().splitlines():
        row = json.loads(log[-1])
        work.counts.update({name: row[name] for name in RECORDED if name in row})
    # The digest of the parameters alone: logs, which hold times, must not make it another artifact.
    work.content = (work.out / files.DIGEST).read_text().strip()


def stage_of(spec: FitSpec, seed: int, places: Mapping[str, str], *, points: str) -> Stage:
    """Returns a stage that writes nowhere, by the roles of its inputs.

    Args:
      spec: the model, the training recipe and the evaluations.
      seed: seed of every random draw.
      places: role -> place of an input.
      points: place of resumable checkpoints.
    """
    return Stage(
        spec=spec,
        seed=seed,
        data=_places_of_roles(places, "data/"),
        init=places.get("init"),
        tokenizer=places["tokenizer"],
        mask_codec=places.get("mask_codec"),
        scratch="",
        points=points,
        out="",
        held_out=_places_of_roles(places, WATCHED),
        probe=(places[PROBE[0]], places[PROBE[1]])
        if spec.watch is not None and spec.watch.probe
        else None,
        shown=places.get(SHOWN),
    )


def stage_paths(stage: Stage) -> "StagePaths":
    """Returns the paths of a stage; its tokenizer and codec are copied here if need be."""
    from model.train.loop import StagePaths

    return StagePaths(
        data=stage.data,
        init=stage.init,
        tokenizer=_artifact_file(stage.tokenizer, files.TOKENIZER),
        mask_codec=_artifact_file(stage.mask_codec, files.MASK_CODEC) if stage.mask_codec else None,
        scratch=stage.scratch,
        points=stage.points,
        out=stage.out,
    )


def _train_with_gang(
    stage: Stage, work: StepContext, is_apart: bool
) -> Generator[Progress, None, None]:
    """Trains a stage with several processes, in the worker's folders or apart from them."""
    with contextlib.ExitStack() as stack:
        # Not in `work.scratch`, which may be copied while a member writes. The cache of a store on
        # disk is in the store's folder, where other hosts that share the folder find it.
        temporary = tempfile.TemporaryDirectory(dir=work.cache("gangs"))
        folder = Path(stack.enter_context(temporary))
        place = str(folder / "gang")
        if is_apart:
            place = f"{work.shared}/gang-{uuid.uuid4().hex[:8]}"
            stage = dataclasses.replace(stage, scratch="", out="")
        ended = yield from train_with_processes(
            stage, work.processes, place, folder / "logs", work.launcher
        )
        work.accelerator = read_message(ended, "accelerator") or ""
        if is_apart:
            _fetch_sent_files(work, ended.removeprefix(f"{work.shared}/"))


def train(
    stage: Stage,
    put: "Put | None" = None,
    must_leave: Callable[[int], bool] = lambda done: False,
    report_place: str = "",
) -> Iterator[Progress]:
    """Trains a stage in this process, alone or as one of several; see `model.train.loop.fit`.

    Args:
      stage: the stage to train.
      put: stores the checkpoint's parameters; None stores them in `stage.out`.
      must_leave: see `fit`.
      report_place: place where this process reports, see `infra.gang.messages`; the checkpoint's
        files are sent there where `stage.out` is "".
    """
    import jax

    from model.seeds import Seeds
    from model.text.tokenizer import Tokenizer
    from model.train.loop import ParamsObserver, fit
    from model.watch.samples import Samples
    from model.watch.watch import Watcher

    spec = stage.spec
    with contextlib.ExitStack() as stack:
        scratch, out, sent = stage.scratch, stage.out, None
        # On another host there is no folder of the worker's to write to: a temporary one takes its
        # place, and its files are sent at the end, parameters as they are written.
        if not stage.out:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="parcel-")))
            scratch, out = str(folder / "scratch"), str(folder / "out")
            Path(out).mkdir()
            sent = _CheckpointSender(f"{report_place}/{_OUT}")
            put = sent.put
        paths = dataclasses.replace(stage_paths(stage), scratch=scratch, out=out, put=put)
        # Measured on held-out data beside the training; changes no parameter.
        observers: dict[str, ParamsObserver] = {}
        model = spec.model.with_prompt(spec.train.prompt)
        if spec.watch is not None:
            watch = Watcher(
                spec.watch,
                model,
                spec.train,
                paths,
                held_out=stage.held_out,
                probe=stage.probe,
            )
            observers[files.WATCH] = stack.enter_context(contextlib.closing(watch))
        if spec.train.sample_steps and stage.shown:
            tokenizer = Tokenizer(paths.tokenizer)
            observers[files.SAMPLES] = Samples(
                model, spec.train, data=stage.shown, tokenizer=tokenizer
            )
        seeds = Seeds.of(stage.seed)
        yield from fit(
            spec.model,
            spec.train,
            paths,
            seeds,
            observers,
            spec.profile,
            must_leave,
            deterministic=spec.deterministic,
        )
        # All that this machine has, whichever stage it was timed for: a program that an earlier
        # process compiled does not say which of it went into it.
        autotuned = {} if spec.deterministic else autotuning_digests()
        if autotuned and jax.process_index() == 0:
            (Path(out) / AUTOTUNING).write_text(json.dumps(autotuned))
        # Every member has sent its own part of the parameters; rank 0 sends the other files.
        if sent is not None and jax.process_index() == 0:
            sent.finish(Path(out))


def _artifact_file(place: str, name: str) -> str:
    """Returns the path of a small file of an artifact, copied to this machine if need be."""
    return str(open_stored_folder(place).local_folder(name) / name)


class _CheckpointSender:
    """Sends the files of a checkpoint to the worker, which is on another host.

    Args:
      place: the place to send them to.
    """

    def __init__(self, place: str) -> None:
        self._files = open_backend(place)
        self._sent: dict[str, tuple[str, int]] = {}

    def put(self, name: str, data: ByteSource) -> None:
        """Sends a file; called by several threads."""
        file = self._files.upload_bytes(name, data).file
        self._sent[name] = file.sha256, file.size

    def finish(self, out: Path) -> None:
        """Sends the files of a folder, and last the list of all files that were sent."""
        for path in sorted(path for path in out.rglob("*") if path.is_file()):
            name = path.relative_to(out).as_posix()
            self._files.upload_file(path, name)
            self._sent[name] = file_sha256(path), path.stat().st_size
        self._files.put(_ALL, json.dumps(self._sent).encode())


def _fetch_sent_files(work: StepContext, ended: str) -> None:
    """Takes the files that members sent into the artifact; parameters stay in the store.

    Args:
      work: the worker's work.
      ended: folder in `work.shared` where the members reported.
    """
    source = f"{ended}/{_OUT}"
    sent = open_backend(f"{work.shared}/{source}")
    for name, (sha256, size) in json.loads(sent.read(_ALL)).items():
        file = File(sha256=sha256, size=size)
        # Parameters are large and lie in the store already: adopted by name, not copied.
        if name.endswith(".safetensors"):
            work.adopt(name, f"{source}/{name}", file)
        else:
            sent.download_file(name, file, work.out / name)
    for name in (files.METRICS, files.WATCH):  # The event file is made from them.
        if (work.out / name).exists():
            shutil.copyfile(work.out / name, work.scratch / name)


def train_with_processes(
    stage: Stage, num_processes: int, place: str, logs: Path, launcher: str = ""
) -> Generator[Progress, None, str]:
    """Trains a stage with several processes; JAX does not run in this one.

    Args:
      stage: the stage to train.
      num_processes: number of processes that train it.
      place: place for their reports, see `infra.gang.messages`: a folder, or gs://bucket/prefix.
      logs: folder for their output; made if need be.
      launcher: command that starts them, see `infra.gang.launcher`; "" starts them on this machine.

    Returns:
      The place of the reports of those that ended well.

    Raises:
      GangFailedError: if they fail, or are lost again and again.
    """
    # The task lies in a place that all members reach; its digest goes along in their command, so
    # that another task put there is refused.
    #
    #   start ─▶ member 0, member 1, …     on this machine, or where the launcher puts them
    #              │ reports in `place`
    #   supervise ◀┘                       yields progress; one is lost: all start again
    task = pickle.dumps(stage)
    open_backend(place).put("task", task)
    words = [f"{place}/task", hashlib.sha256(task).hexdigest(), "--of", str(num_processes)]

    # With `exact_shards` fewer members, on the nodes that are left, make the same bytes.
    if stage.spec.train.exact_shards is not None and launcher.startswith("ray "):
        launcher = launcher.replace("ray ", "ray --fewer ", 1)

    def start(attempt_place: str) -> Gang:
        command = module_command("flows.steps.member", *words, "--supervised", attempt_place)

        def of_rank(rank: int, coordinator: str) -> list[str]:
            return [*command, "--coordinator", coordinator, "--rank", str(rank)]

        if launcher:
            return LauncherGang(launcher, command, num_processes, attempt_place, logs)
        return LocalGang(of_rank, num_processes, logs)

    return (yield from supervise(start, place, logs))


def _places_of_roles(places: Mapping[str, str], begin: str) -> tuple[str, ...]:
    """Returns the places of the artifacts whose roles start with `begin`."""
    return tuple(at for role, at in sorted(places.items()) if role.startswith(begin))


def _connector_of_fit(spec: Mapping[str, Any]) -> str:
    return spec["model"]["connector"]["kind"]


def _num_examples(config: FitSpec | Mapping[str, Any]) -> float:
    """Returns the number of examples that a training sees, at least 1."""
    match config:
        case FitSpec(train=train):
            return float(train.total_steps * train.batch_size) or 1.0
        case {"train": {"total_steps": updates, "batch_size": batch_size}}:
            return float(updates * batch_size) or 1.0
    return 1.0


CHECKPOINT = Kind(
    name="checkpoint",
    make=make,
    spec=FitSpec,
    libraries=("pillow", "sentencepiece"),
    stop=(
        _CONNECTORS,
        *FAMILY_REGISTRIES,
        # Evaluation during training changes no parameter: a metric's edit must not make it stale.
        "flows.steps.events",
        "model.train.log",
        "model.watch.config",
        "model.watch.samples",
        "model.watch.watch",
    ),
    also=lambda spec: connector_modules(_connector_of_fit(spec)),
    entries=lambda spec: {
        _CONNECTORS: class_and_routing(_connector_of_fit(spec)),
        **model_entries(spec["model"], spec.get("train", {}).get("prompt")),
    },
    functions=lambda spec: [_connector_of_fit(spec)],
    holds="checkpoint",
    headline=lambda config, counts: ", ".join(
        f"{name} {counts[name]}" for name in ("loss", "steps") if name in counts
    ),
    sample="trained on it",
    draws_batches=True,
    leaves_out=lambda role: role.startswith(WATCHED) or role in (*PROBE, SHOWN),
    work=_num_examples,
    content="model.checkpoint.folder:params_digest_of",
)
