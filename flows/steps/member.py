"""One process of a gang that trains a stage together.

    python -m flows.steps.member TASK SHA256 --rank 1 --of 2 --coordinator 10.0.0.7:4711
    srun -n 2 python -m flows.steps.member TASK SHA256 --of 2 --supervised FOLDER

A launcher gives each member its rank, and rank 0 writes its address to FOLDER. TASK, FOLDER and
the places that the task names are on a disk that all members share, or in a bucket. The task is
pickled, since configs are typed values; it is checked against the digest in the command. A member
that loses another one ends at once, with an exit code of its own: none can go on alone, so the
process that started them starts all of them again.
"""

import argparse
import contextlib
import functools
import hashlib
import os
import pickle
import sys

from flows.steps.kinds.checkpoint import CHECKPOINT, Stage, train
from flows.steps.user_code import install_user_code
from flows.steps.worker import OtherCodeError, import_step_code
from infra.errors import one_line_message, traceback_text
from infra.gang.launcher import SIZE, launcher_rank, rendezvous_address
from infra.gang.local import exit_on_stdin_close
from infra.gang.messages import (
    FAILED,
    PEER_LOST,
    PREEMPTED,
    ProgressWriter,
    write_exit_code,
    write_failure_reason,
)
from infra.source_code import code_sha256
from infra.store.environment import device_count
from infra.store.stored_folder import open_backend

_HEARTBEAT = 10
"""A member that is silent for this long is lost [s]; one that exits is noticed at once."""
_START = 300
"""Longest wait for all members to connect [s]."""
_END = 24 * 3600
"""Longest wait of the others until rank 0 has written the checkpoint [s]."""


def main() -> None:
    """Trains; exits with 0, or one of the codes in `infra.gang.messages`."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("task", help="the pickled `Stage`: a file, or gs://bucket/name")
    parser.add_argument("sha256", help="SHA-256 of the task [hex]")
    parser.add_argument(
        "--rank", type=int, help="rank of this member, from 0; default: the launcher's"
    )
    parser.add_argument("--of", type=int, required=True, help="number of members")
    parser.add_argument(
        "--coordinator", help="HOST:PORT where rank 0 listens; default: rank 0 writes it to FOLDER"
    )
    parser.add_argument(
        "--supervised",
        metavar="FOLDER",
        help="report progress in files there, and end when the "
        "standard input does; without it, progress is reported on the standard output",
    )
    # Two ways to be started: by hand or by a process on this machine, with rank and coordinator; or
    # by a launcher, which sets the rank, and then rank 0's address is found in FOLDER.
    arguments = parser.parse_args()
    if arguments.rank is None:
        arguments.rank = launcher_rank(os.environ)
    if arguments.rank is None or not (arguments.coordinator or arguments.supervised):
        parser.error(
            "without a launcher that sets the rank, --rank is required; without --supervised, "
            "--coordinator is"
        )
    if arguments.supervised:
        exit_on_stdin_close(PEER_LOST)
    code = _run_gang_member(arguments)
    with contextlib.suppress(OSError):  # The bucket may not answer; the launcher knows, too.
        write_exit_code(arguments.supervised, arguments.rank, code)
    sys.stdout.flush()
    sys.stderr.flush()
    # A normal exit would wait for JAX's threads, and these wait for members that are lost.
    os._exit(code)


def _run_gang_member(arguments: argparse.Namespace) -> int:
    """Returns the exit code of a member."""
    import jax
    from jax.experimental.multihost_utils import reached_preemption_sync_point

    from model.train.loop import PreemptedError

    writer = ProgressWriter(arguments.supervised)
    try:
        stage: Stage = pickle.loads(_read_task(arguments.task, arguments.sha256))
        install_user_code(stage.user_code)
        _check_stage_code(stage)
        # Code is checked before members meet: a wrong checkout on one host fails at once, and not
        # after all have waited for one another.
        coordinator = arguments.coordinator or rendezvous_address(
            arguments.supervised, arguments.rank, _START
        )
        join_gang(coordinator, int(os.environ.get(SIZE) or arguments.of), arguments.rank)
        if arguments.rank == 0:
            writer.write_devices(jax.devices()[0].device_kind, device_count())
        # From here on JAX handles SIGTERM: it has all members agree on a step to save at.
        report_place = arguments.supervised or ""
        for progress in train(
            stage, must_leave=reached_preemption_sync_point, report_place=report_place
        ):
            if arguments.rank == 0:
                writer.write(progress)
        # Waits until rank 0 has written the checkpoint, which may take long.
        jax.distributed.shutdown()
        return 0
    except PreemptedError:
        return PREEMPTED
    except Exception as error:
        print(traceback_text(error), file=sys.stderr)
        with contextlib.suppress(OSError):
            write_failure_reason(arguments.supervised, arguments.rank, one_line_message(error))
        return PEER_LOST if _is_runtime_error(error) else FAILED


def join_gang(coordinator: str, size: int, rank: int) -> None:
    """Connects this process with the others of its gang.

    Args:
      coordinator: rank 0's address as "host:port"; on loopback, the gang is on one machine.
      size: number of members.
      rank: rank of this process.
    """
    import jax
    from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]

    is_local = coordinator.rpartition(":")[0] in ("127.0.0.1", "localhost")
    if is_local:
        # On CPUs the members exchange arrays over connections of their own. JAX lets each listen
        # where this machine's name leads, which may be the network, and has no option for it.
        _jax.make_gloo_tcp_collectives = functools.partial(
            _jax.make_gloo_tcp_collectives, hostname="127.0.0.1"
        )
    jax.distributed.initialize(
        coordinator,
        size,
        rank,
        initialization_timeout=_START,
        heartbeat_timeout_seconds=_HEARTBEAT,
        shutdown_timeout_seconds=_END,
        # Left to JAX, rank 0 listens on every interface.
        coordinator_bind_address=coordinator if is_local else None,
    )


def _read_task(place: str, sha256: str) -> bytes:
    folder, _, name = place.rpartition("/")
    task = open_backend(folder).read(name)
    if hashlib.sha256(task).hexdigest() != sha256:
        raise ValueError(
            f"{place} must be the task whose SHA-256 is in the command, got other bytes."
        )
    return task


def _is_runtime_error(error: BaseException | None) -> bool:
    """Returns whether an error came from JAX's runtime, as it does when a member is lost."""
    import jax

    while error is not None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_stage_code(stage: Stage) -> None:
    """Refuses other code than the supervisor's: the artifact's key would state the wrong code."""
    code_digest = code_sha256(import_step_code(CHECKPOINT.name, stage.spec))
    if code_digest != stage.code:
        raise OtherCodeError(
            f"the stage must be trained with code {stage.code[:8]}, but this process has "
            f"{code_digest[:8]}; start it from the same checkout."
        )


if __name__ == "__main__":
    main()
