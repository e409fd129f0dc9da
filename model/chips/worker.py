"""The child process that lowers and compiles programs: `python -m model.chips.worker`.

It reads requests from its input, one a line, and answers each with a line of JSON:

    ["version", topology]   {"version": …} of the compiler for some chips, or {"missing": reason}
    [program, topology]     {"digest": …}: the program, lowered
    ["compile"]             the outcome of compiling it, a `model.chips.outcome.CompilationOutcome`

A request is a pickle in base 64. What the compilers print goes to the error output.
"""

import base64
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pickle
import sys
import time
from pathlib import Path
from typing import Any

from infra.chips.topology import Topology
from infra.store.variables import leave_out_variables
from model.chips.outcome import CompilationOutcome

_GPU_PLUGIN = "jax_plugins.xla_cuda13"
_NO_TILING = "output tile sizes"
"""Part of the error of a matrix product for which Triton finds no tiling without a GPU to try on;
a real run picks another kernel."""


def missing_compiler(topology: Topology) -> str:
    """Returns the reason why this interpreter cannot compile for a topology; "" if it can."""
    package = _GPU_PLUGIN if topology.chip.is_gpu else "libtpu"
    try:
        found = importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:
        found = False
    return "" if found else f"{package.removeprefix('jax_plugins.')} is not installed"


def _compiler_version(topology: Topology) -> str:
    names = ("jax", "jaxlib", "jax-cuda13-pjrt") if topology.chip.is_gpu else ("libtpu",)
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def _prefer_wheel_ptxas() -> None:
    """Puts the folder of the wheel's `ptxas` first on the path; the machine's may be older."""
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations or () if spec else ():
        for ptxas in Path(place).glob("*/bin/ptxas"):
            os.environ["PATH"] = os.pathsep.join([str(ptxas.parent), os.environ.get("PATH", "")])


def _compiler_version_answer(topology: Topology) -> dict[str, str]:
    if reason := missing_compiler(topology):
        return {"missing": reason}
    return {"version": _compiler_version(topology)}


def _lower_chip_program(program: Any, topology: Topology) -> tuple[Any, dict[str, Any]]:
    lowered = program.lower(topology)
    # A program of one chip is that of every slice of these chips: its own topology counts.
    parts = [_compiler_version(topology), str(lowered.topology)]
    parts += [repr(sorted(lowered.options.items())), str(lowered.open_trips), lowered.text]
    return lowered, {"digest": hashlib.sha256("\n".join(parts).encode()).hexdigest()}


def _compile(lowered: Any) -> dict[str, Any]:
    from model.chips.programs import ProgramTooLargeError

    started, topology = time.monotonic(), lowered.topology
    note = ""
    try:
        try:
            compiled = lowered.compile()
        except Exception as error:
            if _NO_TILING not in str(error):
                raise
            note = "without Triton's matrix products"
            options = {**lowered.options, "xla_gpu_enable_triton_gemm": False}
            compiled = dataclasses.replace(lowered, options=options).compile()
    # Too large is an answer, too: the compiler says how much memory it would need.
    except ProgramTooLargeError as error:
        took = time.monotonic() - started
        return dataclasses.asdict(
            CompilationOutcome(memory_bytes=error.needed_bytes, compile_s=took)
        )
    cost = compiled.cost
    outcome = CompilationOutcome(
        memory_bytes=compiled.peak_bytes,
        argument_bytes=compiled.argument_bytes,
        compute_s=None if topology.chip.is_gpu else cost.compute_s(topology),
        interconnect_s=cost.interconnect_s(topology, hidden=True),
        traffic_bytes=cost.traffic_bytes,
        compile_s=time.monotonic() - started,
        note=note,
    )
    return dataclasses.asdict(outcome)


def main() -> None:
    """Answers requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    leave_out_variables()
    _prefer_wheel_ptxas()
    lowered: Any = None
    for line in sys.stdin:
        request = pickle.loads(base64.b64decode(line))
        try:
            if request == ["compile"]:
                answer = _compile(lowered)
                lowered = None
            elif request[0] == "version":
                answer = _compiler_version_answer(request[1])
            else:
                lowered, answer = _lower_chip_program(*request)
        # Whatever a compiler refuses is an answer about this program, and the next one may do.
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:400]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
