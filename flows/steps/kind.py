"""The words of a study: steps, each of a kind, each leaving one artifact.

    TOKENIZER = Kind(name="tokenizer", make=train)            a kind: a name and a function
    texts = Step(kind="dataset", name="prepare web", …)       a step: what to make …
    pieces = Step(kind="tokenizer", inputs={"data/0": texts}) … and from which other steps

A step runs once its inputs are artifacts of the store. Then its `Recipe` is known: the contents of
the inputs, the config, the seed, and the code that `make` can reach (`flows.steps.code`). `make`
sees a `Work`: folders to read and one to write. The files that it leaves there become an
artifact, found again by its recipe.
"""

import contextlib
import dataclasses
import json
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from infra.progress import Progress
from infra.store.digest import canonical_json
from infra.store.files import Content
from infra.store.manifest import File, Recipe
from infra.store.redact import redact
from infra.store.store import Artifact, Store

T = TypeVar("T")


class Work:
    """The folders and settings of one step while it runs.

    Attributes:
      out: folder for the artifact's files.
      put: stores a file of the artifact that need not lie in `out` first; None: it must.
      scratch: folder for resumable progress; survives a kill, gone after the commit.
      cache: name -> folder of this machine, for what can be had again at any time.
      shared: folder of the store for workers on any machine, and as durable [path or URI].
      inputs: role -> local folder of the artifact read; of a store elsewhere it is copied when it
        is first asked for.
      places: role -> where to read that artifact in ranges, for `open_place`; nothing is copied.
      stored: the same, for any machine: where this one has a copy, others may not.
      artifacts: role -> the artifact read, with its manifest.
      recall: key -> an artifact of the store, for what lies further back than what is read.
      config, seed, location: as in the step.
      processes: that share the step, where its kind can be shared.
      launcher: command that starts them, on other hosts, too; "" starts them on this machine.
      pieces: what `make_piece` made of it and of those that are made with it, in any order.
      counts: the function notes numbers of interest here.
      content: the function may state a logical content digest here.
      accelerator: kind of the devices that were computed on, where JAX ran in other processes.
    """

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        out: Path,
        scratch: Path,
        put: Callable[[str, Content], None] | None = None,
        shared: str = "",
        adopt: Callable[[str, str, File], None] | None = None,
        processes: int = 1,
        launcher: str = "",
    ) -> None:
        self._recipe, self._store = recipe, store
        self.out = out
        self.put = put
        self.scratch = scratch
        self.shared = shared or str(scratch)
        self._adopt = adopt
        self.cache = store.cache
        read = {role: store.get(entry.key) for role, entry in recipe.inputs.items()}
        self.inputs: Mapping[str, Path] = _WhenAsked(read, lambda artifact: artifact.path)
        self.places: Mapping[str, str] = _WhenAsked(read, lambda artifact: artifact.place)
        self.stored: Mapping[str, str] = _WhenAsked(
            read, lambda artifact: f"{artifact.files.uri}/{artifact.folder}"
        )
        self.artifacts = read
        self.recall = store.recall
        self.config = recipe.config
        self.seed = recipe.seed
        self.location = recipe.location
        self.processes, self.launcher = processes, launcher
        self.pieces: Sequence[bytes] = ()
        self.counts: dict[str, float | int | str] = {}
        self.content: str | None = None
        self.accelerator = ""

    def adopt(self, name: str, source: str, file: File) -> None:
        """Makes a file of `shared` one of the artifact's.

        Args:
          name: its path in the artifact.
          source: its path in `shared`.
          file: its digest and size.
        """
        if self._adopt is None:
            (self.out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(self.shared) / source, self.out / name)
        else:
            self._adopt(name, source, file)

    def earlier(self) -> tuple[str, str] | None:
        """Returns where a whole artifact is that differs in its inputs only, the newest.

        As (the store that `shared` is in, too [URI], the artifact's folder there). None if there
        is none, or `shared` is no folder of the store.
        """
        if self._adopt is None:
            return None
        recipe, store = self._recipe, self._store
        config = redact(json.loads(canonical_json(recipe.config)))  # As manifests have it.
        wanted = config, recipe.seed, recipe.code, dict(recipe.libraries)
        alike = []
        for key in store.keys(recipe.kind):
            if key.endswith(recipe.code_suffix):
                with contextlib.suppress(KeyError):  # gc was quicker.
                    found = store.recall(key)
                    known = found.manifest
                    if (known.config, known.seed, known.code, known.libraries) == wanted:
                        alike.append(found)
        newest = sorted(alike, key=lambda artifact: artifact.manifest.started, reverse=True)
        whole = next((artifact for artifact in newest if store.is_whole(artifact)), None)
        return None if whole is None else (store.uri, whole.folder)


class _WhenAsked(Mapping[str, T]):
    """Role -> something of the artifact read that may cost a copy."""

    def __init__(self, read: Mapping[str, Artifact], give: Callable[[Artifact], T]) -> None:
        self._read, self._give = read, give

    def __getitem__(self, role: str) -> T:
        return self._give(self._read[role])

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of step, and what decides the bytes of its artifacts.

    Attributes:
      name: "dataset", "checkpoint", ...
      make: writes the artifact into `work.out`, yielding progress; the heavy imports are inside.
      libraries: distributions whose version can change those bytes; part of the identity.
      stop: modules at which the code of `make` ends; see `code.Tree.reach`.
      also: config, as plain values -> modules that belong to the code although nothing that `make`
        reaches imports them.
      functions: config, as plain values -> functions that it names, as "module:name"; their code
        belongs to the step's, and the versions of what they import to its identity.
      make_piece: makes one of so many pieces of what `make_together` makes, which then finds them
        as `work.pieces`; None where it has none.
      make_together: as `make`, for several steps that read the same inputs, with the same seed;
        the bytes are those that `make` writes. None makes each alone.
      alike: config -> a value that two of them share where they can be made together.
    """

    name: str
    make: Callable[[Work], Iterator[Progress]]
    libraries: tuple[str, ...] = ()
    stop: tuple[str, ...] = ()
    also: Callable[[Mapping[str, Any]], Iterable[str]] | None = None
    functions: Callable[[Any], Iterable[str]] | None = None
    make_together: Callable[[Sequence[Work]], Iterator[Progress]] | None = None
    make_piece: Callable[[Sequence[Work], int, int], Generator[Progress, None, bytes]] | None = None
    alike: Callable[[Any], Any] = lambda config: config


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One artifact of a study, before its inputs are known.

    Attributes:
      kind: name of its kind.
      name: for people, unique in a study: "transfer parcel chartqa seed=48213".
      config: settings; where a step runs is never part of them.
      seed: of every random draw; None where nothing is drawn.
      inputs: role -> the step whose artifact is read.
      partial: whether it runs without the inputs that failed; a report does.
      location: folder outside the store that it reads (raw data). Not part of its identity: the
        digests of the files in it are.
      keys: attribute of `config` -> key of the study's config that it comes from, for people.
    """

    kind: str
    name: str
    config: Any = None
    seed: int | None = None
    inputs: Mapping[str, "Step"] = dataclasses.field(default_factory=dict)
    partial: bool = False
    location: str | None = None
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
