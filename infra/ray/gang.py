"""Starts the members of a gang on nodes of a Ray cluster, as `srun` does on hosts of Slurm.

    python -m infra.ray.gang --cpus 8 --gpus 0 -n 4 COMMAND …

Ray Train's `JaxTrainer` places them: each gets its cores and its GPUs or TPU host; if a topology is
named, the hosts of a slice are placed together. A member sees the same as under any other launcher
(see `infra.gang.launcher`): its rank in the environment, and an input that closes when its starter
ends. The members find rank 0 through their own messages, and the gang restarts as a whole. So the
trainer starts no `jax.distributed` of its own, and retries nothing.

When a node is about to be taken away (a preemption; Ray calls it draining), its member gets
SIGTERM, the notice that JAX knows: all members save at the same step, and leave.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from typing import Any

from infra.credentials import redact_text
from infra.errors import one_line_message
from infra.gang.launcher import ADDRESS, MPI_RANK, RANKS, SIZE
from infra.gang.local import exit_on_stdin_close
from infra.processes.module import python_path
from infra.ray.devices import slice_environment, worker_environment
from infra.store.variables import recorded_variables, with_variables

_MEMBER_ENDED = re.compile(r"rank \d+ ended with (?P<code>-?\d+) .*")
_POLL_INTERVAL = 1.0
"""Interval between two looks at the nodes, and at a member [s]."""
_LOG_TAIL = 500
"""Length of the end of a member's output that its error cites [characters]."""


def main() -> None:
    """Starts the members, and waits for them; exits with the code of one that failed, or 0."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("-n", type=int, required=True, help="members")
    parser.add_argument("--cpus", type=int, default=1, help="cores of each")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of each")
    parser.add_argument(
        "--topology",
        help="topology of a TPU slice, such as 4x4x4; each host of it is a member",
    )
    parser.add_argument("--accelerator", help="accelerator type of the slices, such as TPU-V4")
    parser.add_argument("--chips", type=int, default=4, help="chips of each host of a slice")
    parser.add_argument(
        "--wait", type=float, default=900.0, help="longest wait for nodes to start [s]"
    )
    parser.add_argument(
        "--fewer",
        action="store_true",
        help="start half of the members, or a quarter …, where nodes are still missing then",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="command of each member, from `python` on"
    )
    args = parser.parse_args()
    exit_on_stdin_close(1)  # The members' inputs then close, and they end, too.

    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.jax import JaxConfig, JaxTrainer

    ray.init(os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False)
    # With a topology a member is a TPU host, and its chips count instead of GPUs.
    chips, gpus = (args.chips, 0) if args.topology else (0, args.gpus)
    resources = {"CPU": args.cpus, "GPU": gpus, "TPU": chips}
    resources = {name: count for name, count in resources.items() if count}
    size, of_slice = args.n, _workers_of_slice(args, resources) if chips else 1
    if args.fewer:
        size = _await_nodes(size, resources, args.wait, least=of_slice)
    threading.Thread(
        target=_await_nodes, args=(size, resources, args.wait, size), daemon=True, name="nodes"
    ).start()
    # Ray Train only places the members and starts them. It retries nothing, since the gang's
    # supervisor restarts all members together, from their last saved state.
    with tempfile.TemporaryDirectory() as folder:
        trainer = JaxTrainer(
            _run_ray_gang_member,
            train_loop_config={
                "command": args.command[1:],
                "of_slice": of_slice if chips else size,
                "variables": recorded_variables(os.environ),
            },
            jax_config=JaxConfig(),
            scaling_config=ScalingConfig(
                num_workers=size,
                use_gpu=bool(gpus),
                use_tpu=bool(chips),
                topology=args.topology,
                accelerator_type=args.accelerator,
                resources_per_worker=resources,
                placement_strategy="SPREAD",
            ),
            run_config=RunConfig(
                storage_path=folder,
                failure_config=FailureConfig(
                    max_failures=0, controller_failure_limit=0, max_preemption_failures=0
                ),
                worker_runtime_env={"env_vars": worker_environment(args.cpus, gpus, chips, {})},
            ),
        )
        code = _run_trainer(trainer)
    sys.stdout.flush()
    os._exit(code)  # Ray has threads that some exits wait for.


def _run_trainer(trainer: Any) -> int:
    """Returns the exit code of a member that failed, as a shell gives it; 0 if all ended well.

    Prints a line for each member that failed.
    """
    from ray.train import TrainingFailedError

    try:
        trainer.fit()
    except TrainingFailedError as error:
        codes = []
        failures: dict[int, Exception] = getattr(error, "worker_failures", {})
        # Without failures, a node is draining or Ray Train itself failed. The code of a killed
        # process makes the supervisor restart the gang.
        if not failures:
            print(f"{type(error).__name__}: {one_line_message(error)}")
            return 128 + signal.SIGKILL
        # A failure cites what `_run_ray_gang_member` raised: "rank 1 ended with 17", and the end
        # of its output.
        for rank, failure in sorted(failures.items()):
            message = _MEMBER_ENDED.search(str(failure))
            # A worker without such a message was killed with its node.
            codes.append(int(message["code"]) if message else -signal.SIGKILL)
            print(message[0] if message else f"rank {rank} was lost: {type(failure).__name__}")
        worst = min(codes)  # A killed member (negative) before those that ended because of it.
        return 128 - worst if worst < 0 else worst
    return 0


def _workers_of_slice(args: argparse.Namespace, resources: Mapping[str, int]) -> int:
    """Returns the members that fill a TPU slice; ends this process if n is not a multiple of it."""
    from ray.util.tpu import get_tpu_worker_resources

    requested = {name: float(count) for name, count in resources.items()}
    size, _ = get_tpu_worker_resources(args.topology, args.accelerator, requested)
    if args.n % size:
        print(
            f"compute.processes_per_stage must be a multiple of {size}, the hosts of a slice of "
            f"{args.topology}, got {args.n}"
        )
        sys.exit(1)
    return size


def _await_nodes(size: int, resources: Mapping[str, int], seconds: float, least: int) -> int:
    """Returns how many members the nodes have room for if all were idle: `size`, if they soon do.

    After some seconds it is half of `size`, or a quarter …, but not below `least`: this process
    ends if there is no room for these either. Ray Train itself waits for ever. The step that called
    this occupies one core of its node.
    """
    import ray

    this_node = ray.get_runtime_context().get_node_id()
    deadline = time.monotonic() + seconds
    while True:
        # What the nodes have in total, not what is free now: another gang's members will end. With
        # members of 4 CPUs each, and this step's own core on node A:
        #
        #   A   8 CPUs - 1   room for 1
        #   B   8 CPUs       room for 2      together 3
        draining = _draining_nodes()
        totals = [
            {
                **node["Resources"],
                "CPU": node["Resources"].get("CPU", 0) - (node["NodeID"] == this_node),
            }
            for node in ray.nodes()
            if node["Alive"] and node["NodeID"] not in draining
        ]
        capacity = sum(
            min(int(total.get(name, 0)) // count for name, count in resources.items())
            for total in totals
        )
        if capacity >= size:
            return size
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_INTERVAL)
    fewer = size
    while fewer > capacity and fewer % 2 == 0:
        fewer //= 2
    if least <= fewer <= capacity:
        print(f"{fewer} of {size} processes: no more nodes came in {seconds:.0f} s", flush=True)
        return fewer
    requested = " and ".join(f"{count} {name}" for name, count in resources.items())
    print(
        f"the cluster has room for {capacity} processes with {requested} each, of {size}, beside "
        f"the step's own core, and no more came in {seconds:.0f} s (compute.node_wait)",
        flush=True,
    )
    os._exit(1)


def _draining_nodes() -> set[str]:
    """Returns the nodes that are about to be taken away; none while the head does not answer."""
    # Ray Train asks this way, too; its public `get_preemption_info` blocks until all workers ask.
    from ray._private.state import state
    from ray.exceptions import RayError

    try:
        return set(state.get_draining_nodes())
    except (RayError, OSError):
        return set()


def _run_ray_gang_member(config: dict[str, Any]) -> None:
    """Runs in a worker of Ray Train: starts a member, notifies it of a preemption, waits for it.

    Raises:
      RuntimeError: if the member failed; the message has the end of its output.
    """
    import ray
    from ray.train import get_context

    rank = get_context().get_world_rank()
    environment = {
        # Inherited settings are dropped: a node that Slurm started has a rank of its own, and the
        # settings of a multi-slice node may name other slices than this gang's.
        **{
            name: value
            for name, value in with_variables(os.environ, config["variables"]).items()
            if name not in RANKS and not name.startswith("MEGASCALE_")
        },
        MPI_RANK: str(rank),
        SIZE: str(get_context().get_world_size()),
        "PYTHONPATH": python_path(),
        ADDRESS: ray.util.get_node_ip_address(),
        **_slice_environment(rank, config["of_slice"]),
    }
    with tempfile.TemporaryFile() as printed:
        member = subprocess.Popen(
            [sys.executable, *config["command"]],
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        # The notice is given once; JAX then has all members save at the same step.
        this_node, is_notified = ray.get_runtime_context().get_node_id(), False
        while (code := _exit_code(member)) is None:
            if not is_notified and this_node in _draining_nodes():
                member.send_signal(signal.SIGTERM)
                is_notified = True
        printed.seek(0)
        output = printed.read().decode(errors="replace")
        print(output, flush=True)  # To the log that Ray keeps of this worker.
        if code:
            log_tail = " ".join(redact_text(output[-_LOG_TAIL:]).split())
            raise RuntimeError(f"rank {rank} ended with {code} {log_tail}")


def _slice_environment(rank: int, of_slice: int) -> dict[str, str]:
    """Returns the variables with which libtpu connects several slices over their network.

    Args:
      rank: rank of the member.
      of_slice: number of members in a slice; their ranks are consecutive.
    """
    from ray.train import get_context
    from ray.train.collective import broadcast_from_rank_zero
    from ray.util import get_node_ip_address

    # Ranks of one slice are consecutive: with 4 members to a slice, ranks 0 to 3 are slice 0.
    num_slices = get_context().get_world_size() // of_slice
    first = broadcast_from_rank_zero(get_node_ip_address()) if num_slices > 1 else ""
    return slice_environment(first, num_slices, rank // of_slice)


def _exit_code(member: subprocess.Popen[bytes]) -> int | None:
    """Waits a little for a member; returns its exit code, None while it lives."""
    try:
        return member.wait(_POLL_INTERVAL)
    except subprocess.TimeoutExpired:
        return None


if __name__ == "__main__":
    main()
