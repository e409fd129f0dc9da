"""What the 3B model does on the devices at hand: times, MFU, memory, and whether bits repeat.

    python -m perf.accelerator --json out.json             # everything, in about eight minutes
    python -m perf.accelerator --parts prefill --batches 32
    python -m perf.accelerator --tables out.json           # its figures as tables for a page

Needs jax, flax, optax, orbax and grain only. Each part runs in a process of its own, which begins
with empty devices; what would begin after `--minutes` is left out, and said to be.

    stage    real widths and vocabulary, few layers: trained, trained again, killed and resumed
    train    an update at every bucket, at each batch and remat
    prefill  a prompt of one row (the time to the first token) and of many; video clips
    token    one more token, with a cache

MFU is the FLOPs by the paper's formulas (an update is three forward passes; recomputation in the
backward pass does not count) over the time and the peak of all devices. Training holds float32
parameters and moments: 16 bytes a parameter with the gradient, 49 GB for 3B; prefill and decoding
have bfloat16 parameters. Parameters are random, which changes no time.
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from infra.cores import num_cores
from model import presets, vlm
from model.analysis.flops import Modality, prefill_flops, update_flops
from model.analysis.peak import peak_tflops
from model.checkpoint.digest import params_digest, unflatten_params
from model.checkpoint.resume import ResumePoints, process_parts
from model.chips.programs import TrainProgram
from model.config import ModelConfig
from model.connector import budgets
from model.connector.config import ConnectorConfig
from model.decode.generate import generate
from model.sharding import make_mesh, on_host, shard_batch, shard_tree
from model.train.config import TrainConfig
from model.train.step import Rates, State, StepPrograms, abstract_state, make_state
from perf.batches import prompts, train_batch
from perf.programs import PromptProgram, exact_slots, prefill_program
from perf.timing import Timing, aligned_table, time_in_turns

MODEL_SIZES = {"3b": presets.paligemma2_3b, "small": presets.small, "tiny": presets.tiny}
MEASURED_PARTS = ("stage", "train", "prefill", "token")

Row = dict[str, Any]

_RATES = Rates(learning=1e-5, decay=0.0)
_GIB = 2**30
_STAGE_UPDATES, _SAVED_AFTER = 6, 3
"""Updates of the part `stage`, and the one after which its state is saved."""
_STAGE_DEPTH = 2
"""Layers of each tower there: their widths are real, and a state is written in seconds."""
_FRAMES = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeasurementRequest:
    """What is to be measured.

    Attributes:
      model: the model; `remat` is set per program.
      at: budgets, of which none shares its program with another.
      batches: examples of an update over all devices, in turns.
      remats: values of `ModelConfig.remat`, in turns.
      rows: prompts of a prefill, in turns.
      clips: video clips of a prefill.
      text_len: length of the prompt, or of prompt and answer in training [tokens].
      rounds: counted runs of each program.
      num_tokens: tokens decoded, for the time of one.
      until: time after which nothing new begins [seconds since the epoch].
    """

    model: ModelConfig
    at: tuple[int, ...]
    batches: tuple[int, ...]
    remats: tuple[str, ...]
    rows: tuple[int, ...]
    clips: int
    text_len: int
    rounds: int
    num_tokens: int
    until: float

    @property
    def extremes(self) -> tuple[int, ...]:
        """The smallest, a middle and the largest budget."""
        return tuple(sorted({self.at[0], self.at[len(self.at) // 3], self.at[-1]}))


def measure_train(request: MeasurementRequest) -> Iterator[Row]:
    """Yields a row per batch, remat and budget: time, MFU and memory of an update."""
    mesh = make_mesh()
    models = [dataclasses.replace(request.model, remat=remat) for remat in request.remats]
    combos = [
        (m, _benchmark_train_config(request, size)) for size in request.batches for m in models
    ]
    state = make_state(
        request.model, _random_benchmark_params(request.model, jnp.float32), combos[0][1], mesh
    )
    # The compiler works on the host while the devices run what is compiled: programs of the next
    # combination are compiled in a thread meanwhile, as many at a time as there are cores.
    shapes = abstract_state(request.model, combos[0][1], mesh)

    def compiled(model: ModelConfig, train: TrainConfig) -> StepPrograms:
        programs = StepPrograms(model, train, mesh)
        programs.compile_ahead(shapes, [(budget, 1) for budget in request.at])
        return programs

    with ThreadPoolExecutor(1) as ahead:
        waiting = [ahead.submit(compiled, *combo) for combo in combos]
        for (model, train), programs in zip(combos, waiting, strict=True):
            row: Row = {"part": "train", "batch": train.batch_size, "remat": model.remat}
            if time.time() > request.until:
                programs.cancel()
                yield row | {"left_out": "out of time"}
                continue
            try:
                step = programs.result()
            except jax.errors.JaxRuntimeError as error:  # More than the compiler can place.
                yield row | {"left_out": str(error).splitlines()[0]}
                continue
            batch = train_batch(model, train.batch_size, request.text_len)
            for budget in request.at:
                bucket = budgets.bucket_of(model, budget).size
                row = row | {"budget": budget, **_program_memory_row(step.program(bucket))}
                if reason := _why_left_out(request, row):
                    yield row | {"left_out": reason}
                    continue

                def update(budget: int = budget, step: StepPrograms = step, batch: Any = batch):
                    nonlocal state
                    state, metrics = step(state, batch, budget, _RATES)
                    return metrics.loss

                timing = time_in_turns({"": update}, request.rounds)[""]
                prompt = Modality(name="prompt", num_images=1, text_tokens=request.text_len)
                flops = update_flops(model, budget, prompt, train.batch_size)
                yield row | _timing_row(timing, flops, train.batch_size) | _peak_memory_row()


def measure_prefill(request: MeasurementRequest) -> Iterator[Row]:
    """Yields a row per number of prompts and budget, and per budget of video clips."""
    cfg = request.model
    params = _random_benchmark_params(cfg, _benchmark_dtype(cfg))
    runs = [(rows, 1, budget) for rows in request.rows for budget in request.at]
    runs += [(request.clips, _FRAMES, budget) for budget in request.extremes if request.clips]

    def compiled(rows: int, images: int, budget: int) -> tuple[Any, vlm.Prompt]:
        prompt = _benchmark_prompt(cfg, rows, request.text_len, images)
        return prefill_program(cfg).lower(params, prompt, exact_slots(cfg, budget)), prompt

    # Compiled on all cores, timed one after the other: each is timed as soon as it is there.
    lowered = [compiled(*run) for run in runs]
    with ThreadPoolExecutor(num_cores()) as pool:
        programs = pool.map(lambda pair: pair[0].compile(), lowered)
        for (rows, images, budget), (_, prompt), program in zip(
            runs, lowered, programs, strict=True
        ):
            what = "video" if images > 1 else "prefill"
            row: Row = {
                "part": what,
                "batch": rows,
                "budget": budget,
                **_program_memory_row(program),
            }
            if reason := _why_left_out(request, row):
                yield row | {"left_out": reason}
                continue
            run = functools.partial(program, params, prompt, exact_slots(cfg, budget))
            timing = time_in_turns({"": run}, request.rounds)[""]
            modality = Modality(name=what, num_images=images, text_tokens=request.text_len)
            flops = rows * prefill_flops(cfg, budget, modality).total
            yield row | _timing_row(timing, flops, rows) | _peak_memory_row()


def measure_token(request: MeasurementRequest) -> Iterator[Row]:
    """Yields a row per budget: time of one more token of the most prompts at a time."""
    cfg, rows = request.model, max(request.rows)
    params = _random_benchmark_params(cfg, _benchmark_dtype(cfg))
    prompt = _benchmark_prompt(cfg, rows, request.text_len)
    for budget in request.extremes:
        row: Row = {"part": "token", "batch": rows, "budget": budget}
        if time.time() > request.until:
            yield row | {"left_out": "out of time"}
            continue
        # What one more token takes is what many take, less what the first one took.
        runs = {
            f"{count:05d}": functools.partial(
                generate,
                vlm.structure(cfg),
                params,
                prompt,
                exact_slots(cfg, budget),
                max_new_tokens=count,
                stop=None,
            )
            for count in (1, request.num_tokens)
        }
        first, last = time_in_turns(runs, request.rounds).values()
        seconds = max(last.wall - first.wall, 0.0) / (request.num_tokens - 1)
        timing = Timing(wall=seconds, cpu=0.0, noise=last.noise)
        yield row | _timing_row(timing, None, rows) | _peak_memory_row()


def train_stage(request: MeasurementRequest, folder: Path) -> Iterator[Row]:
    """Trains `_STAGE_UPDATES` updates, from the last state saved in `folder` if there is one.

    Yields {"saved": updates} once a state is saved, and {"from", "digest", "seconds"} at the end.
    """
    began = time.monotonic()
    cfg = shallow(request.model)
    train = _benchmark_train_config(request, request.batches[0])
    mesh = make_mesh()
    programs = StepPrograms(cfg, train, mesh)
    with contextlib.closing(ResumePoints(folder)) as points:
        restored = points.restore(abstract_state(cfg, train, mesh)) if points.may_restore else None
        state: State
        start, state, _ = restored or (
            0,
            make_state(cfg, _random_benchmark_params(cfg, jnp.float32), train, mesh),
            {},
        )
        for update in range(start, _STAGE_UPDATES):
            # Every update has another batch and another budget, which depend on its number alone.
            batch = train_batch(cfg, train.batch_size, request.text_len, seed=update)
            budget = request.at[update % len(request.at)]
            state, _ = programs(state, batch, budget, _RATES)
            if update + 1 == _SAVED_AFTER:
                points.save(update + 1, process_parts(state), {})
                points.wait()
                yield {"saved": update + 1}
        params = {path: on_host(leaf) for path, leaf in {**state.trained, **state.frozen}.items()}
        digest = params_digest(unflatten_params(params))
        yield {"from": start, "digest": digest, "seconds": time.monotonic() - began}


def chip_programs() -> Iterator[tuple[str, TrainProgram | PromptProgram]]:
    """Yields name and program of all that one chip is timed with, but for the part `stage`."""
    request = _measurement_request(_measurement_parser().parse_args([]))
    for size, remat in itertools.product(request.batches, request.remats):
        model = dataclasses.replace(request.model, remat=remat)
        for budget in request.at:
            tokens = budgets.bucket_of(model, budget).size
            train = dataclasses.replace(
                _benchmark_train_config(request, size).program, budgets=None
            )
            program = TrainProgram(model=model, train=train, tokens=tokens)
            yield f"train {remat}, batch {size}, {tokens} tokens", program
    prompt = functools.partial(PromptProgram, model=request.model, text_len=request.text_len)
    for rows, budget in itertools.product(request.rows, request.at):
        yield f"prefill, {rows} rows, {budget} tokens", prompt(budget=budget, rows=rows)
    for budget in request.extremes:
        if clips := request.clips:
            video = prompt(budget=budget, rows=clips, num_images=_FRAMES)
            yield f"prefill, {clips} clips, {budget} x {_FRAMES} tokens", video
        rows, count = max(request.rows), request.num_tokens
        program = prompt(budget=budget, rows=rows, new_tokens=count)
        yield f"{count} tokens of {rows} rows, {budget} tokens", program


def shallow(cfg: ModelConfig) -> ModelConfig:
    """Returns the model with few layers, all of them as wide as they are."""
    return dataclasses.replace(
        cfg,
        vision=dataclasses.replace(cfg.vision, depth=min(cfg.vision.depth, _STAGE_DEPTH)),
        text=dataclasses.replace(cfg.text, depth=min(cfg.text.depth, _STAGE_DEPTH)),
    )


def compare_stages(words: Sequence[str]) -> Iterator[Row]:
    """Yields one row: whether a stage's bits repeat, undisturbed and after a kill.

    Args:
      words: this command's arguments.
    """
    #   whole    1 2 3 4 5 6
    #   again    1 2 3 4 5 6      the same digest?
    #   killed   1 2 3 ✗          SIGKILL once the state is saved
    #   resumed        4 5 6      the same digest?
    with tempfile.TemporaryDirectory() as folder:
        whole = [*_measure_part_in_child(words, "stage", "--folder", f"{folder}/whole")]
        again = [*_measure_part_in_child(words, "stage", "--folder", f"{folder}/again")]
        killed = [
            *_measure_part_in_child(words, "stage", "--folder", f"{folder}/killed", kill_at="saved")
        ]
        resumed = [*_measure_part_in_child(words, "stage", "--folder", f"{folder}/killed")]
    ends = [rows[-1] if rows else {} for rows in (whole, again, killed, resumed)]
    problem = next((end["left_out"] for end in ends if "left_out" in end), "")
    if problem:
        yield {"part": "stage", "left_out": problem}
        return
    yield {
        "part": "stage",
        "twice_equal": whole[-1]["digest"] == again[-1]["digest"],
        "killed_after": killed[-1]["saved"],
        "resumed_from": resumed[-1]["from"],
        "resumed_equal": whole[-1]["digest"] == resumed[-1]["digest"],
        "seconds": round(sum(rows[-1]["seconds"] for rows in (whole, again, resumed)), 1),
    }


def _measure_part_in_child(
    words: Sequence[str], part: str, *more: str, kill_at: str = ""
) -> Iterator[Row]:
    """Yields the rows that a part prints in a process of its own; the devices are then free again.

    Args:
      words: this command's arguments.
      part: the part to measure there.
      *more: further arguments.
      kill_at: key of the row at which the process is killed.
    """
    command = [sys.executable, "-m", "perf.accelerator", *words, "--only", part, *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        was_killed = False
        for line in process.stdout:
            # Other lines are a library's, for people.
            row = json.loads(line) if line.startswith("{") else None
            if row is None:
                continue
            yield row
            if kill_at and kill_at in row:
                was_killed = True
                process.send_signal(signal.SIGKILL)
    # A part that fails, for want of memory or by a fault of the driver's, leaves the others alone.
    if process.returncode and not was_killed:
        yield {"part": part, "left_out": f"ended with status {process.returncode}"}


def tables(report: Row) -> str:
    """Returns the figures of a report as Markdown tables, one per part."""
    rows = [row for row in report["rows"] if "ms" in row]
    lines = [
        f"{report['device']}, {report['size']}, {report['dtype']}, jax {report['jax']}, "
        f"{report['date']}",
        "",
        "| | batch | budget | ms | MFU | rows/s | memory [GiB], by the compiler |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        what = " ".join(filter(None, (row["part"], row.get("remat", ""))))
        mfu = "" if row.get("mfu") is None else f"{row['mfu']:.1%}"
        memory = " / ".join(f"{row[k]:.1f}" for k in ("peak_gib", "compiled_gib") if row.get(k))
        lines.append(
            f"| {what} | {row['batch']} | {row['budget']} | {row['ms']:.1f} | {mfu} | "
            f"{row['rows_per_s']:.1f} | {memory} |"
        )
    for row in report["rows"]:
        if row["part"] == "stage" and "left_out" not in row:
            equal = {True: "equal", False: "DIFFERENT"}
            lines += [
                "",
                f"A stage trained twice: {equal[row['twice_equal']]} bytes; killed after update "
                f"{row['killed_after']} and resumed from {row['resumed_from']}: "
                f"{equal[row['resumed_equal']]} bytes.",
            ]
    left_out = [row for row in report["rows"] if "left_out" in row]
    lines += ["", f"Left out: {len(left_out)}."] if left_out else []
    return "\n".join(lines)


def _benchmark_train_config(request: MeasurementRequest, batch_size: int) -> TrainConfig:
    return TrainConfig(
        batch_size=batch_size,
        text_len=request.text_len,
        budgets=request.at,
        peak_lr=1e-5,
        total_steps=_STAGE_UPDATES,
    )


def _benchmark_dtype(cfg: ModelConfig) -> Any:
    return jnp.bfloat16 if cfg.dtype == "bfloat16" else jnp.float32


def _random_benchmark_params(cfg: ModelConfig, dtype: Any) -> vlm.Params:
    """Returns small random parameters on all devices; their values do not matter."""

    def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
        return jax.jit(lambda: 0.02 * jax.random.normal(jax.random.key(0), leaf.shape, dtype))()

    return shard_tree(jax.tree.map(draw, vlm.abstract_params(cfg)), make_mesh())


def _benchmark_prompt(
    cfg: ModelConfig, rows: int, text_len: int, num_images: int = 1
) -> vlm.Prompt:
    fields = prompts(cfg, rows, text_len, num_images)._asdict()
    present = {name: array for name, array in fields.items() if array is not None}
    # One row is on one device: it is the time to the first token that counts there.
    if rows % jax.device_count():
        return vlm.Prompt(**{name: jnp.asarray(array) for name, array in present.items()})
    return vlm.Prompt(**shard_batch(present, make_mesh()))


def _program_memory_row(program: jax.stages.Compiled) -> Row:
    """Returns the peak memory of a program on one device, by the compiler."""
    memory = program.memory_analysis()
    return {"compiled_gib": round(memory.peak_memory_in_bytes / _GIB, 3)} if memory else {}


def _why_left_out(request: MeasurementRequest, row: Row) -> str:
    """Returns why a compiled program is not run; "" if it is."""
    if row.get("compiled_gib", 0) > _device_gib():
        return "does not fit"
    return "out of time" if time.time() > request.until else ""


def _peak_memory_row() -> Row:
    """Returns the most that the first device held since the process began, if it counts that."""
    stats = jax.devices()[0].memory_stats() or {}
    peak = stats.get("peak_bytes_in_use")
    return {} if peak is None else {"peak_gib": round(peak / _GIB, 3)}


def _device_gib() -> float:
    """Returns the memory that programs of a device may take [GiB]; infinite if it does not say."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats.get("bytes_limit", float("inf")) / _GIB


def _timing_row(timing: Timing, flops: float | None, rows: int) -> Row:
    peak = peak_tflops(jax.devices())
    rate = None if flops is None else flops / timing.wall / 1e12
    return {
        "ms": round(1000 * timing.wall, 3),
        "noise": round(timing.noise, 4),
        "rows_per_s": round(rows / max(timing.wall, 1e-9), 3),
        "tflops": None if rate is None else round(rate, 3),
        "mfu": None if rate is None or peak is None else round(rate / peak, 4),
    }


def _measurement_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", choices=sorted(MODEL_SIZES), default="3b")
    parser.add_argument("--connector", default="parcel")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--parts", nargs="+", choices=MEASURED_PARTS, default=MEASURED_PARTS)
    parser.add_argument("--budgets", type=int, nargs="+", help="default: that of each bucket")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128], help="of an update")
    parser.add_argument("--remats", nargs="+", default=["full", "minimal"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32], help="of a prefill")
    parser.add_argument("--clips", type=int, default=8, help=f"of {_FRAMES} frames; 0: none")
    parser.add_argument("--text-len", type=int, default=128, help="[tokens]")
    parser.add_argument("--rounds", type=int, default=3, help="counted runs of each program")
    parser.add_argument("--tokens", type=int, default=32, help="decoded, for the time of one")
    parser.add_argument("--minutes", type=float, default=8, help="nothing begins after so many")
    parser.add_argument("--json", type=Path, help="file to write all figures to")
    parser.add_argument("--tables", type=Path, help="prints the figures of such a file as tables")
    # What the command passes to its own processes.
    parser.add_argument("--only", choices=MEASURED_PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    return parser


def _measurement_request(args: argparse.Namespace) -> MeasurementRequest:
    connector = ConnectorConfig(kind=args.connector)
    model = dataclasses.replace(MODEL_SIZES[args.size](connector), dtype=args.dtype)
    buckets = [bucket.size for bucket in budgets.buckets(model)]
    return MeasurementRequest(
        model=model,
        at=tuple(sorted(args.budgets or buckets)),
        batches=tuple(args.batches),
        remats=tuple(args.remats),
        rows=tuple(args.rows),
        clips=args.clips,
        text_len=args.text_len,
        rounds=args.rounds,
        num_tokens=args.tokens,
        until=args.until or time.time() + 60 * args.minutes,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Measures the parts in turn, and prints each row as soon as there is one."""
    words = sys.argv[1:] if words is None else words
    args = _measurement_parser().parse_args(words)
    if args.tables:
        print(tables(json.loads(args.tables.read_text())))
        return
    request = _measurement_request(args)
    if args.only:
        rows = {
            "stage": functools.partial(train_stage, folder=args.folder),
            "train": measure_train,
            "prefill": measure_prefill,
            "token": measure_token,
        }[args.only](request)
        if args.only != "stage":
            devices = jax.devices()
            print(json.dumps({"device": f"{len(devices)} x {devices[0].device_kind}"}), flush=True)
        for row in rows:
            print(json.dumps(row), flush=True)
        return
    # This process leaves the devices to its children.
    report: Row = {
        "device": "",
        "size": args.size,
        "dtype": args.dtype,
        "text_len": args.text_len,
        "jax": jax.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "date": time.strftime("%Y-%m-%d"),
        "rows": [],
    }
    words = [*words, "--until", str(request.until)]
    for part in args.parts:
        for row in (
            compare_stages(words) if part == "stage" else _measure_part_in_child(words, part)
        ):
            if "device" in row:
                report["device"] = row["device"]
                continue
            report["rows"].append(row)
            print(" ".join(f"{k}={v}" for k, v in row.items()), flush=True)
            if args.json:  # Written anew at each row, in case the time here is cut short.
                args.json.write_text(json.dumps(report, indent=1))
    print(
        aligned_table(
            ["device", "size", "rows"], [[report["device"], args.size, len(report["rows"])]]
        )
    )


if __name__ == "__main__":
    main()
