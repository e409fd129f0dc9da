"""Compiles programs in a child process, and keeps the outcomes.

The compilers are a library of 700 MB for TPUs and a plugin of JAX for GPUs. They may be in an
environment of their own, named by `PARCEL_CHIP_PYTHON`, so that the one that trains has neither. A
compiler that dies, for lack of memory say, ends the child alone.
"""

import base64
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import model
from infra.chips.topology import Topology
from infra.store.stored_folder import open_backend
from model.chips.outcome import Outcome
from model.chips.worker import missing_compiler

PYTHON = "PARCEL_CHIP_PYTHON"
"""Environment variable with the Python whose environment has the compilers."""


class CompilerMissingError(Exception):
    """The compiler for some chips is not installed."""


class CompilationError(Exception):
    """A compiler refused a program, or died."""


class RefusedError(CompilationError):
    """A compiler refused a program."""


class Compiler:
    """A child process that compiles; it starts with the first program.

    Args:
      cache: folder of earlier outcomes, by digest of program, compiler, topology and options.
      python: the Python whose environment has the compilers; None takes `PARCEL_CHIP_PYTHON`, else
        this one.
    """

    def __init__(self, cache: Path, python: str | None = None) -> None:
        self._cache = cache
        self._python = python or os.environ.get(PYTHON) or sys.executable
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Compiler":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the child."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()
            self._child = None

    def check(self, topology: Topology) -> None:
        """Refuses chips that this interpreter's environment has no compiler for.

        Whether another one's has is known when the child was asked.

        Raises:
          CompilerMissingError: if there is none.
        """
        if self._python == sys.executable and (reason := missing_compiler(topology)):
            raise CompilerMissingError(_cure(reason, topology))

    def outcome(self, program: Any, topology: Topology, *, only_cached: bool = False) -> Outcome:
        """Returns what compiling a program for chips told, now or earlier.

        Lowering is quick, compiling is not: so an outcome is kept under the digest of the lowered
        program, and whatever does not change the program does not compile again.

        Args:
          program: one of `model.chips.programs`.
          topology: the chips.
          only_cached: whether to look up an earlier outcome, and compile nothing.

        Raises:
          CompilerMissingError: if there is no compiler for these chips.
          CompilationError: if it refuses the program for another reason than its size, or dies.
          LookupError: if there is no earlier outcome, and nothing may be compiled.
        """
        self.check(topology)
        lowered = self._ask([program, topology])
        if "missing" in lowered:
            raise CompilerMissingError(_cure(lowered["missing"], topology))
        file = self._cache / f"{lowered['digest']}.json"
        if file.is_file():
            earlier = json.loads(file.read_text())
            if "error" in earlier:
                raise RefusedError(earlier["error"])
            return Outcome(**earlier)
        if only_cached:
            raise LookupError(f"{lowered['digest'][:12]} was not compiled yet")
        # A refusal is an outcome, too. That the compiler died is none: it may lack memory today.
        refusal: RefusedError | None = None
        outcome: dict[str, Any] = {}
        try:
            outcome |= self._ask(["compile"])
        except RefusedError as error:
            refusal, outcome["error"] = error, str(error)
        open_backend(str(self._cache)).put(file.name, json.dumps(outcome).encode())
        if refusal is not None:
            raise refusal
        return Outcome(**outcome)

    def _ask(self, request: list[Any]) -> dict[str, Any]:
        """Returns the child's answer to a request.

        Raises:
          CompilationError: if it is an error, or the child died.
        """
        try:
            child = self._child = self._child or self._start()
        except OSError as error:
            raise CompilationError(
                f"{PYTHON}, or --compiler, must be a Python that runs, got {self._python}: "
                f"{error.strerror}"
            ) from None
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(base64.b64encode(pickle.dumps(request)).decode() + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code, self._child = child.wait(), None
            child.communicate()
            raise CompilationError(
                f"the compiler's process, {self._python}, ended with {code}; -9 says that memory "
                f"ran out"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer

    def _start(self) -> subprocess.Popen[str]:
        # The child has this checkout's code, whatever its environment has, and no device.
        root = str(Path(model.__file__ or "").parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            [self._python, "-m", "model.chips.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )


def _cure(reason: str, topology: Topology) -> str:
    return (
        f"{reason}: programs for {topology.kind} are not compiled; pip install '.[compilers]', or "
        f"name a Python that has it in {PYTHON}"
    )
