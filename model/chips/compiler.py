"""Compiles programs in a child process, and keeps the outcomes.

The compilers are a library of 700 MB for TPUs and a plugin of JAX for GPUs. They may be in an
environment of their own, named by `PARCEL_CHIP_PYTHON`, so that the one that trains has neither. A
compiler that dies, for lack of memory say, ends the child alone.
"""

import base64
import dataclasses
import functools
import hashlib
import inspect
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import model
from infra.chips.topology import Topology
from infra.processes.module import module_command
from infra.source_code import checkout, code_sha256
from infra.store.stored_folder import open_backend
from model.chips.outcome import CompilationOutcome
from model.chips.worker import missing_compiler

PYTHON = "PARCEL_CHIP_PYTHON"
"""Environment variable with the Python whose environment has the compilers."""


class CompilerMissingError(Exception):
    """The compiler for some chips is not installed."""


class CompilationError(Exception):
    """A compiler refused a program, or died."""


class CompilationRefusedError(CompilationError):
    """A compiler refused a program."""


class Compiler:
    """A child process that compiles; it starts with the first program.

    Args:
      cache: folder of earlier outcomes, by digest of program, compiler, topology and options.
      python: the Python whose environment has the compilers; None takes `PARCEL_CHIP_PYTHON`, else
        this one.

    Attributes:
      num_compiled: programs that the child compiled, or refused, for this object.
    """

    def __init__(self, cache: Path, python: str | None = None) -> None:
        self._cache = cache
        self._python = python or os.environ.get(PYTHON) or sys.executable
        self._child: subprocess.Popen[str] | None = None
        self._versions: dict[bool, str] = {}  # Of the compilers for TPUs (False) and GPUs (True).
        self.num_compiled = 0

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
            raise CompilerMissingError(_missing_compiler_message(reason, topology))

    def outcome(self, program: Any, topology: Topology) -> CompilationOutcome:
        """Returns the outcome of compiling a program for chips, now or in an earlier call.

        Lowering takes seconds, compiling minutes: so an outcome is kept under the digest of the
        lowered program, and whatever does not change the program does not compile again.

        Args:
          program: one of `model.chips.programs`.
          topology: the chips.

        Raises:
          CompilerMissingError: if there is no compiler for these chips.
          CompilationError: if it refuses the program for another reason than its size, or dies.
        """
        if (earlier := self.cached_outcome(program, topology)) is not None:
            return earlier
        digest = self._ask_compiler_child([program, topology])["digest"]
        if not self._outcome_file(digest).is_file():
            self._write_compiler_cache(f"{digest}.json", json.dumps(self._compile()))
        # The next call need not lower the program to know its digest.
        self._write_compiler_cache(self._digest_file(program, topology).name, digest)
        return self._read_outcome(digest)

    def cached_outcome(self, program: Any, topology: Topology) -> CompilationOutcome | None:
        """Returns the outcome of an earlier call by the same code; None without one.

        The program is not lowered for it.

        Raises:
          CompilerMissingError: if there is no compiler for these chips.
          CompilationError: if the compiler refused the program for another reason than its size.
        """
        file = self._digest_file(program, topology)
        digest = file.read_text() if file.is_file() else ""
        return self._read_outcome(digest) if self._outcome_file(digest).is_file() else None

    def _compile(self) -> dict[str, Any]:
        # A refusal is an outcome, too. That the compiler died is none: it may lack memory today.
        try:
            outcome = self._ask_compiler_child(["compile"])
        except CompilationRefusedError as error:
            outcome = {"error": str(error)}
        self.num_compiled += 1
        return outcome

    def _outcome_file(self, digest: str) -> Path:
        return self._cache / f"{digest}.json"

    def _read_outcome(self, digest: str) -> CompilationOutcome:
        outcome = json.loads(self._outcome_file(digest).read_text())
        if "error" in outcome:
            raise CompilationRefusedError(outcome["error"])
        # Outcomes of earlier versions have more to say of GPUs.
        known = {field.name for field in dataclasses.fields(CompilationOutcome)}
        return CompilationOutcome(
            **{name: value for name, value in outcome.items() if name in known}
        )

    def _digest_file(self, program: Any, topology: Topology) -> Path:
        """Returns the file with the digest of a program as the code here lowers it."""
        parts = [self._version(topology), *_lowering_code(type(program)), str(topology)]
        parts.append(repr(program))
        return self._cache / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.digest"

    def _version(self, topology: Topology) -> str:
        """Returns name and version of the compiler for chips.

        Raises:
          CompilerMissingError: if there is none.
        """
        self.check(topology)
        is_gpu = topology.chip.is_gpu
        if is_gpu not in self._versions:
            answer = self._ask_compiler_child(["version", topology])
            if "missing" in answer:
                raise CompilerMissingError(_missing_compiler_message(answer["missing"], topology))
            self._versions[is_gpu] = answer["version"]
        return self._versions[is_gpu]

    def _write_compiler_cache(self, name: str, text: str) -> None:
        open_backend(str(self._cache)).put(name, text.encode())

    def _ask_compiler_child(self, request: list[Any]) -> dict[str, Any]:
        """Returns the child's answer to a request.

        Raises:
          CompilationError: if it is an error, or the child died.
        """
        try:
            child = self._child = self._child or self._start_compiler_child()
        except OSError as error:
            raise CompilationError(
                f"{PYTHON}, or --compiler, must be a Python that runs, got {self._python}: "
                f"{error.strerror}"
            ) from None
        assert child.stdin is not None
        assert child.stdout is not None
        # A line each way. One child answers all requests, as starting JAX takes seconds.
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
            raise CompilationRefusedError(answer["error"])
        return answer

    def _start_compiler_child(self) -> subprocess.Popen[str]:
        # The child has this checkout's code, whatever its environment has, and no device.
        root = str(Path(model.__file__ or "").parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        return subprocess.Popen(
            module_command("model.chips.worker", python=(self._python,)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"},
        )


@functools.cache
def _lowering_code(kind: type) -> tuple[str, str]:
    """Returns digests of the code that lowers programs, and of a kind of program's own module."""
    module = inspect.getmodule(kind)
    assert module is not None
    own = hashlib.sha256(inspect.getsource(module).encode()).hexdigest()
    return code_sha256(checkout().reach(["model.chips.programs"])), own


def _missing_compiler_message(reason: str, topology: Topology) -> str:
    return (
        f"{reason}: programs for {topology.kind} are not compiled; pip install '.[compilers]', or "
        f"name a Python that has it in {PYTHON}"
    )
