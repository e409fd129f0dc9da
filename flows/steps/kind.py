"""The terms of a study: steps, each of a kind, each of which makes one artifact.

    TOKENIZER = Kind(name="tokenizer", make=train)            a kind: a name and a function
    texts = Step(kind="dataset", labels=…, …)                 a step: what to make …
    pieces = Step(kind="tokenizer", inputs={"data/0": texts}) … and from which other steps

A step runs once its inputs are artifacts of the store. Then its `Recipe` is known: the contents of
the inputs, the config, the seed, and the code that `make` can reach (`infra.source_code`). `make`
sees a `StepContext`: folders to read and one to write. The files that it leaves there become an
artifact, found again by its recipe.
"""

import contextlib
import dataclasses
import functools
import json
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar

from flows.steps.labels import Labels
from infra.progress import Progress
from infra.references import module_reference
from infra.store.backend import ByteSource
from infra.store.births import with_births
from infra.store.digest import canonical_json, settings_json
from infra.store.manifest import File, Recipe
from infra.store.redact import redact
from infra.store.store import Artifact, Store

T = TypeVar("T")

Contents = Literal["dataset", "checkpoint", "files", "answers", "scores", "guesses", "table", ""]
"""Contents of an artifact: records; parameters; files that other steps read; a model's answers to
records; the scores of such answers; those of guesses without a model; a table of scores. Whoever
shows, traces, exports or releases an artifact asks for these, not for its kind."""


class StepContext:
    """The folders and settings of one step while it runs.

    Attributes:
      out: folder for the artifact's files.
      put: function that stores a file of the artifact without `out`; None: write it to `out`.
      scratch: folder for resumable progress; survives a kill, gone after the commit.
      cache: function from a name to a folder of this machine, for files that can be recreated.
      shared: folder that workers on any machine can use, as durable as `scratch` [path or URI].
      inputs: role -> local folder of the input artifact; it is copied from a store elsewhere on
        first access.
      places: role -> place of the input artifact for `open_stored_folder`, which reads ranges of
        its files; nothing is copied.
      stored: role -> place of the input artifact in the store, for any machine; `places` may name
        this machine's copy.
      artifacts: role -> the input artifact, with its manifest.
      recall: function from a key to an artifact of the store, for ancestors of the inputs.
      config, seed, location: as in the step.
      code: digest of the code that makes it, which this process was found to have [hex].
      processes: number of processes that share the step, where its kind can be shared.
      launcher: command that starts them, also on other hosts; "" starts them on this machine.
      pieces: pieces that `make_piece` made of this step and of those made with it, in any order.
      counts: numbers of interest; `make` notes them here.
      content: logical content digest; `make` may state one here.
      accelerator: kind of device that was used, where JAX ran in other processes.
    """

    def __init__(
        self,
        recipe: Recipe,
        store: Store,
        out: Path,
        scratch: Path,
        put: Callable[[str, ByteSource], None] | None = None,
        shared: str = "",
        adopt: Callable[[str, str, File], None] | None = None,
        processes: int = 1,
        launcher: str = "",
    ) -> None:
        # The same inputs, in three ways, for three kinds of readers:
        #
        #   inputs["init"]   a folder on this machine; a remote artifact is copied at first access
        #   places["init"]   where to read ranges of its files from; nothing is copied
        #   stored["init"]   the place in the store, which another host can reach, too
        #
        # All are lazy: a step that reads one of ten inputs copies one.
        self._recipe, self._store = recipe, store
        self.out = out
        self.put = put
        self.scratch = scratch
        self.shared = shared or str(scratch)
        self._adopt = adopt
        self.cache = store.cache
        read = {role: store.get(entry.key) for role, entry in recipe.inputs.items()}
        self.inputs: Mapping[str, Path] = _LazyInputs(read, lambda artifact: artifact.path)
        self.places: Mapping[str, str] = _LazyInputs(read, lambda artifact: artifact.uri)
        self.stored: Mapping[str, str] = _LazyInputs(
            read, lambda artifact: f"{artifact.files.uri}/{artifact.folder}"
        )
        self.artifacts = read
        self.recall = store.get_cached
        self.config = recipe.config
        self.seed = recipe.seed
        self.location = recipe.location
        self.code = recipe.code
        self.processes, self.launcher = processes, launcher
        self.pieces: Sequence[bytes] = ()
        self.counts: dict[str, float | int | str] = {}
        self.content: str | None = None
        self.accelerator = ""

    def adopt(self, name: str, source: str, file: File) -> None:
        """Takes a file of `shared` into the artifact.

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
        """Finds the newest complete artifact that differs from this step's in its inputs only.

        Returns:
          The URI of the store, which `shared` is in too, and the artifact's folder there. None if
          there is no such artifact, or `shared` is not in the store.
        """
        if self._adopt is None:
            return None
        recipe, store = self._recipe, self._store
        config = redact(json.loads(canonical_json(recipe.config)))  # The form of manifests.
        wanted_identity = config, recipe.seed, recipe.code, dict(recipe.libraries)
        spec = type(recipe.config)
        candidates = []
        # The key's end is the code's digest: most artifacts are ruled out without reading them.
        for key in store.keys(recipe.kind):
            if key.endswith(recipe.code_suffix):
                with contextlib.suppress(KeyError):  # gc deleted it meanwhile.
                    artifact = store.get_cached(key)
                    manifest = artifact.manifest
                    if (
                        with_births(spec, manifest.config),
                        manifest.seed,
                        manifest.code,
                        manifest.libraries,
                    ) == wanted_identity:
                        candidates.append(artifact)
        # A damaged artifact is passed over for the next older one.
        newest = sorted(candidates, key=lambda artifact: artifact.manifest.started, reverse=True)
        complete = next((artifact for artifact in newest if store.has_all_files(artifact)), None)
        return None if complete is None else (store.uri, complete.folder)


class _LazyInputs(Mapping[str, T]):
    """Role -> a value of the input artifact that may cost a copy, computed on access."""

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
      spec: type of its steps' configs, `… | None` where some have none; None where all have none.
      libraries: distributions whose version can change those bytes; part of the identity.
      unused_libraries: function from the config, as plain values, to those of `libraries` that have
        no part in a step, nor in its identity.
      stop: modules that are no part of the code of `make`; see `infra.source_code.Tree.reach`.
      also: function from the config, as plain values, to modules that belong to the code although
        nothing that `make` reaches imports them: the reader, connector or metric that it names.
      entries: function from the config, as plain values, to registry -> the values, in that
        registry's entry for what the config names, that decide bytes; they count as its code.
      functions: function from the config, as plain values, to the functions that it names, as
        "module:name"; their code belongs to the step's code, and the versions of the libraries that
        they import to its identity.
      make_piece: makes one piece, by its number and how many there are, of the work of
        `make_together`, which finds the pieces in `work.pieces`; None: there are no pieces.
      make_together: makes several steps that read the same inputs, but for `separate_inputs`, with
        the same seed, with the same bytes as `make`; None: each step is made alone.
      group_value: function from the config to a value; steps with equal values can be made
        together.
      separate_inputs: roles of inputs that may differ between steps that are made together.
      holds: contents of its artifacts; "" for those that no reader knows.
      items: role of the dataset whose records are answered, scored or guessed; "" for none.
      headline: function from the config and the counts of an artifact to its words in a progress
        line.
      sample: words for how a score made from its artifact rests on a record that the step read.
      draws_batches: whether a step reads only the records in its batches, of the roles "data/…" and
        by `train` of its config; other steps read every record of their inputs.
      leaves_out: function from a role to whether nothing of that input gets into the artifact: it
        is only evaluated, or compared with.
      matches: file of its artifacts that lists the records that look like others', for
        `read_matches`; "" where there is none.
      file_field: field of the config that stands for files that a study is given, whose digests are
        the artifact; "" where there are none.
      can_be_touched: whether that field changes, too, when a file is only touched.
      work: function from the config, typed or as plain values, to the amount of work of a step,
        comparable within its kind.
      sort: function from the config, likewise, to a value; the times of steps with another value
        say nothing about a step's.
      content: function, as "module:function", from an artifact's folder to the content digest that
        `make` stated; "" if there is none, or the folder alone does not give it.
      mark_accepted: function from the config, the roles of all inputs and the roles of those that
        rest on an accepted artifact, to the config of an artifact that shows them.
    """

    name: str
    make: Callable[[StepContext], Iterator[Progress]]
    spec: type | UnionType | None = None
    libraries: tuple[str, ...] = ()
    unused_libraries: Callable[[Any], Iterable[str]] | None = None
    stop: tuple[str, ...] = ()
    also: Callable[[Any], Iterable[str]] | None = None
    entries: Callable[[Any], Mapping[str, Any]] | None = None
    functions: Callable[[Any], Iterable[str]] | None = None
    make_together: Callable[[Sequence[StepContext]], Iterator[Progress]] | None = None
    make_piece: (
        Callable[[Sequence[StepContext], int, int], Generator[Progress, None, bytes]] | None
    ) = None
    group_value: Callable[[Any], Any] = lambda config: config
    separate_inputs: tuple[str, ...] = ()
    holds: Contents = ""
    items: str = ""
    headline: Callable[[Any, Mapping[str, Any]], str] = lambda config, counts: ", ".join(
        f"{name} {value}" for name, value in counts.items()
    )
    sample: str = "with it in something that they are made from"
    draws_batches: bool = False
    leaves_out: Callable[[str], bool] = lambda role: False
    matches: str = ""
    file_field: str = ""
    can_be_touched: bool = False
    work: Callable[[Any], float] = lambda config: 1.0
    sort: Callable[[Any], str] = lambda config: ""
    content: str = ""
    mark_accepted: Callable[[Any, Iterable[str], Set[str]], Any] = (
        lambda config, roles, accepted_roles: config
    )

    @property
    def files(self) -> Mapping[str, str]:
        """Name or pattern of an artifact's files -> their contents, in words.

        The words are "Files:" in the docstring of `make`'s module: docstrings are no part of a
        step's code, so that better words make no artifact stale.
        """
        text = sys.modules[self.make.__module__].__doc__ or ""
        entries = re.split(r"\n  (?=\S)", text.partition("\nFiles:")[2].partition("\n\n")[0])[1:]
        pairs = (" ".join(entry.split()).partition(": ") for entry in entries)
        return {name: words for name, _, words in pairs}

    def user_modules(self, config: Any) -> tuple[str, ...]:
        """Returns the modules of the functions that a config names; most kinds name none."""
        if self.functions is None:
            return ()
        return _user_modules(self.functions, settings_json(config))


@functools.lru_cache(4096)
def _user_modules(functions: Callable[[Any], Iterable[str]], config: str) -> tuple[str, ...]:
    references = map(module_reference, functions(json.loads(config)))
    return tuple(reference[0] for reference in references if reference)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """One artifact of a study, before its inputs are known.

    Attributes:
      kind: name of its kind.
      labels: the facts by which people tell it from the study's other steps; its name is written
        from them.
      config: settings; where a step runs is never part of them.
      seed: seed of every random draw; None where nothing is drawn.
      inputs: role -> the step whose artifact is read.
      partial: whether it runs although some inputs failed; a report does.
      location: folder outside the store that it reads (raw data). Not part of its identity: the
        digests of the files in it are.
      keys: attribute of `config` -> key of the study's config that it comes from, for people.
    """

    kind: str
    labels: Labels
    config: Any = None
    seed: int | None = None
    inputs: Mapping[str, "Step"] = dataclasses.field(default_factory=dict)
    partial: bool = False
    location: str | None = None
    keys: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name for people, unique in a study: "transfer parcel chartqa seed=48213"."""
        return self.labels.name
