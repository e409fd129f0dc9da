"""Memory, traffic and time of every program of some studies on every kind of chip, compiled.

    python -m perf.matrix --cache matrix --limit 10
    python -m perf.matrix --config configs/pali3b_8gpu.yaml --topology h100:8 --only "intermediary"
    python -m perf.matrix --cache matrix --limit 0 --table programs.csv

No chip is needed. The compilers run in a child process, by the Python that `--compiler` or
PARCEL_CHIP_PYTHON names; chips whose compiler is not there are skipped, with the reason. Chips,
studies and kinds of program (a stage, transfers, evaluations, spectra) take turns, so that the
first few programs are of every kind. Each outcome is kept in the cache, so an interrupted matrix
goes on where it ended: the rows that were not compiled yet are counted below the table. Seconds
are those of a TPU's compiler; a GPU's estimates none. `--table` adds the rows to those of a file,
in place of the same programs'.
"""

import argparse
import csv
import dataclasses
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from flows.plan.study_programs import HOST_STEPS, study_programs
from flows.report.markdown import markdown_table
from flows.study.load import load
from infra.chips.topology import GIB, Topology
from model.chips.compiler import CompilationError, Compiler, CompilerMissingError
from model.chips.outcome import CompilationOutcome
from model.chips.programs import DeviceProgram
from perf.accelerator import chip_programs
from perf.attention import AttentionKernel, attention_programs
from perf.programs import PromptProgram

CONFIGS = (
    "configs/paper_224.yaml",
    "configs/paper_448.yaml",
    "configs/pali3b_8gpu.yaml",
    "configs/pali3b_1gpu.yaml",
)
"""The studies of the whole matrix."""

ACCELERATOR = "perf.accelerator"
"""In place of a study's file: the programs that this command times, on one GPU of each kind. The
state of a training of the 3B model is more than one TPU holds."""

ATTENTION = "perf.attention"
"""In place of a study's file: attention by this project and by libraries, on one chip."""

TOPOLOGIES = ("v4:8x8x4", "v5e:16x16", "v6e:16x16", "h100:8", "a100:8")
"""The chips of the whole matrix."""

_HEAD = ["study", "program", "chips", "GiB/chip", "fits", "GB sent", "time [s]", "compiled [s]"]

_KEY = ("study", "settings", "program", "chips")
"""Columns of `--table` that say which program a row is of."""

_COLUMNS: list[str] = [
    *_KEY,
    "GiB",
    "spare GiB",
    "GB sent",
    "compute s",
    "interconnect s",
    "compile s",
    "error",
]


MatrixProgram = DeviceProgram | PromptProgram | AttentionKernel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A program of a study on some chips.

    Attributes:
      study: name of the study.
      settings: changes of the study, as "key.path=value".
      names: the program's places in it.
      topology: the chips.
      outcome: what compiling told; None where the compiler refused it.
      error: the refusal; "" without one.
    """

    study: str
    settings: tuple[str, ...] = ()
    names: tuple[str, ...]
    topology: str
    outcome: CompilationOutcome | None = None
    error: str = ""

    @property
    def kind(self) -> str:
        """Use of the program: "transfer", "evaluation", "spectra" or a stage's name."""
        return re.split("[ ,@]", self.names[0], maxsplit=1)[0]

    @property
    def compute_s(self) -> float | None:
        """Time of computing by a TPU's compiler [s]; None for a GPU, and if refused."""
        is_gpu = Topology.parse(self.topology).chip.is_gpu
        return None if is_gpu or self.outcome is None else self.outcome.compute_s

    @property
    def spare_bytes(self) -> float | None:
        """Memory of a chip that is left, negative if the program does not fit; None if refused."""
        chip = Topology.parse(self.topology).chip
        return None if self.outcome is None else chip.program_bytes - self.outcome.memory_bytes

    @property
    def name(self) -> str:
        """The first of the program's places, and the number of others."""
        first, *others = self.names
        return first + (f" (and {len(others)} more)" if others else "")

    def values(self) -> dict[str, str]:
        """Returns the row's values in a file's table, by `_COLUMNS`."""
        values = dict.fromkeys(_COLUMNS, "")
        values |= {"study": self.study, "settings": " ".join(self.settings)}
        values |= {"program": self.name, "chips": self.topology, "error": self.error}
        if (outcome := self.outcome) is not None:
            spare = self.spare_bytes
            for name, value, unit in (
                ("GiB", outcome.memory_bytes, GIB),
                ("spare GiB", spare, GIB),
                ("GB sent", outcome.traffic_bytes, 1e9),
                ("compute s", self.compute_s, 1),
                ("interconnect s", outcome.interconnect_s, 1),
                ("compile s", outcome.compile_s, 1),
            ):
                values[name] = "" if value is None else f"{value / unit:.4g}"
        return values

    def cells(self) -> list[str]:
        """Returns the row's cells in the table."""
        head = [self.study, self.name, self.topology]
        if self.outcome is None or self.spare_bytes is None:
            return [*head, "", self.error, "", "", ""]
        fits = "yes" if self.spare_bytes >= 0 else f"no, by {-self.spare_bytes / GIB:.1f} GiB"
        outcome, time, sent = self.outcome, "", ""
        if self.compute_s is not None and outcome.interconnect_s is not None:
            time = f"{self.compute_s:.3g} + {outcome.interconnect_s:.3g}"
        if outcome.traffic_bytes is not None:
            sent = f"{outcome.traffic_bytes / 1e9:.1f}"
        memory, took = f"{outcome.memory_bytes / GIB:.1f}", f"{outcome.compile_s:.0f}"
        return [*head, memory, fits, sent, time, took]


def matrix_rows(
    config: str, topology: Topology, only: re.Pattern[str], overrides: Sequence[str] = ()
) -> Iterator[tuple[Row, MatrixProgram]]:
    """Yields a row without outcome for each program of which a name matches, and the program."""
    if config in (ACCELERATOR, ATTENTION):
        # One GPU is a topology of its own; libtpu knows no single chip of every kind.
        one = str(topology.one_chip if topology.chip.is_gpu else topology)
        programs = attention_programs() if config == ATTENTION else chip_programs()
        for name, program in programs:
            if only.search(name) and (config == ATTENTION or topology.chip.is_gpu):
                yield Row(study=config, names=(name,), topology=one), program
        return
    study = load(config, overrides=[*overrides, f"compute.topology={topology}"])
    for each in study_programs(study, topology):
        if any(only.search(name) for name in each.names):
            row = Row(
                study=study.name,
                settings=tuple(overrides),
                names=each.names,
                topology=str(topology),
            )
            yield row, each.program


def in_turns(
    configs: Sequence[str],
    topologies: Sequence[str],
    only: re.Pattern[str],
    overrides: Sequence[str] = (),
) -> Iterator[tuple[Row, MatrixProgram]]:
    """Yields rows as `matrix_rows`: chips, studies and kinds of program take turns."""
    groups: dict[tuple[str, str, str], list[tuple[Row, MatrixProgram]]] = {}
    for config, name in itertools.product(configs, topologies):
        for row, program in matrix_rows(config, Topology.parse(name), only, overrides):
            groups.setdefault((row.kind, config, name), []).append((row, program))
    for turn in itertools.zip_longest(*groups.values()):
        yield from (each for each in turn if each is not None)


def matrix(
    configs: Sequence[str],
    topologies: Sequence[str],
    compiler: Compiler,
    *,
    overrides: Sequence[str] = (),
    only: str = "",
    limit: int | None = None,
) -> Iterator[Row | str]:
    """Yields the matrix's rows, and lines on what is not in it.

    Args:
      configs: files of studies, `ACCELERATOR` or `ATTENTION`.
      topologies: names of chips.
      compiler: compiles, and has the outcomes of earlier calls.
      overrides: changes of the studies, as "key.path=value".
      only: pattern of the names of programs; "" takes all.
      limit: most programs to compile now; None compiles all. Earlier outcomes do not count.
    """
    num_left, skipped = 0, set[str]()
    for row, program in in_turns(configs, topologies, re.compile(only), overrides):
        if row.topology in skipped:
            continue
        chips = Topology.parse(row.topology)
        try:
            outcome = compiler.cached_outcome(program, chips)
            if outcome is None and limit is not None and compiler.num_compiled >= limit:
                num_left += 1
                continue
            yield dataclasses.replace(row, outcome=outcome or compiler.outcome(program, chips))
        except CompilationError as error:
            yield dataclasses.replace(row, error=str(error))
        except CompilerMissingError as error:
            skipped.add(row.topology)
            yield f"{row.topology} is skipped: {error}"
    if num_left:
        yield f"{num_left} more programs are not compiled yet: --limit {limit} is reached"
    yield from HOST_STEPS


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a file of comma-separated values, in place of those of the same programs."""
    earlier: list[dict[str, str]] = []
    if path.is_file():
        with path.open(newline="") as file:
            earlier = [*csv.DictReader(file)]
    by_key = {_table_key(each): each for each in [*earlier, *(row.values() for row in rows)]}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(by_key[key] for key in sorted(by_key, key=_by_number))


def _table_key(values: dict[str, str]) -> tuple[str, ...]:
    return tuple(values[name] for name in _KEY)


def _by_number(words: Sequence[str]) -> list[int | str]:
    """Returns a key that sorts by words, with the numbers in them as numbers."""
    parts = re.split(r"(\d+)", "\n".join(words))
    return [int(part) if part.isdecimal() else part for part in parts]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table as Markdown, or JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    configs = [*(c for c in CONFIGS if Path(c).is_file()), ACCELERATOR, ATTENTION]
    parser.add_argument(
        "--config", nargs="+", default=configs, help=f"or {ACCELERATOR}, {ATTENTION}"
    )
    parser.add_argument("--topology", nargs="+", default=TOPOLOGIES, help="v4:8x8x4, h100:8, ...")
    parser.add_argument("--set", nargs="+", default=(), metavar="KEY=VALUE", help="in each study")
    parser.add_argument("--only", default="", metavar="PATTERN", help="of the names of programs")
    parser.add_argument("--limit", type=int, help="most programs to compile now")
    parser.add_argument("--compiler", metavar="PYTHON", help="Python that has the compilers")
    parser.add_argument("--cache", type=Path, default=Path("~/.cache/parcel/programs"))
    parser.add_argument("--table", type=Path, metavar="CSV", help="file to add the rows to")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args(words)
    rows: list[Row] = []
    lines: list[str] = []
    with Compiler(args.cache.expanduser(), args.compiler) as compiler:
        chosen = {"overrides": args.set, "only": args.only, "limit": args.limit}
        for row in matrix(args.config, args.topology, compiler, **chosen):
            # Told at once: a program takes minutes.
            text = row if isinstance(row, str) else " | ".join(row.cells())
            print(text, file=sys.stderr, flush=True)
            if isinstance(row, str):
                lines.append(row)
            else:
                rows.append(row)
    rows.sort(key=lambda row: _by_number(_table_key(row.values())))
    if args.table:
        write_table(args.table, rows)
    if args.json:
        print(json.dumps({"rows": [dataclasses.asdict(row) for row in rows], "lines": lines}))
    else:
        print(markdown_table(_HEAD, [row.cells() for row in rows], left=[0, 1, 2]))
        print("\n".join(f"- {line}" for line in lines))


if __name__ == "__main__":
    main()
