"""What compiling a program tells, as it is kept."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompilationOutcome:
    """What compiling a program told, for each chip.

    Attributes:
      memory_bytes: peak memory; for a program that a TPU's compiler refuses as too large, the
        memory that it asks for.
      argument_bytes: size of its arguments; None where it was refused.
      compute_s: time of computing, by the cycles of a TPU's compiler; None for GPUs, and where it
        was refused [s].
      interconnect_s: time of all collectives, one after the other, including those that overlap
        computing; None where it was refused [s].
      traffic_bytes: bytes that pass a chip's links; None where it was refused.
      compile_s: time that compiling took [s].
      note: how it was compiled, where not as a real run does; "" otherwise.
    """

    memory_bytes: float
    argument_bytes: float | None = None
    compute_s: float | None = None
    interconnect_s: float | None = None
    traffic_bytes: float | None = None
    compile_s: float
    note: str = ""
