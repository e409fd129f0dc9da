"""Config of where the steps of a study run, and with how many cores and GPUs each."""

import dataclasses
from typing import Annotated, Any, Literal

from pydantic import Field

from infra.chips.topology import Topology
from model.train.config import check_microbatch


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Where steps run; never part of a result's identity.

    Attributes:
      ray_address: a running Ray cluster: "http://host:8265", its job server, or "host:port" of its
        head, or "auto" on one of its nodes. None starts one on this machine.
      num_cpus: cores of the cluster started here; None takes all of the machine's.
      prepare_at_once: datasets that are prepared at a time, each by `prepare.num_workers` processes
        that the run's own process starts, or by workers that it drives.
      cpus_per_stage: cores of Stage 1, which runs alone.
      processes_per_stage: processes that train Stage 1 together and share its cores and GPUs: each
        reads its part of every batch and holds its part of the state. If one is lost, all restart
        from the last saved checkpoint.
      cpus_per_cell: cores of each intermediary or transfer.
      processes_per_cell: processes that train each intermediary, Stage 2 or transfer together.
      launcher: command that starts several such processes on other hosts: "srun" inside a Slurm
        allocation, "mpirun", "ray" for nodes of the cluster that the step runs on, or "tpu-vm
        --name NAME --zone ZONE" for the hosts of a TPU VM; it is called with `-n` and their
        number. Each process then has the cores and GPUs asked for on its own host, and all hosts
        must see the store, a bucket or a shared folder. None starts them on one machine.
      cpus_per_evaluation: cores of a transfer's evaluations; None takes `cpus_per_cell`.
      num_gpus: GPUs of the cluster started here; None takes all that JAX can use.
      gpus_per_stage: GPUs of Stage 1, where there are any; their number must divide its batch.
        Where there are TPUs instead, a step that asks for GPUs takes all chips of one host.
      gpus_per_cell: GPUs of each intermediary or transfer, where there are any.
      gpus_per_evaluation: GPUs of a transfer's evaluations; None takes those of a cell.
      evaluation_pieces: jobs among which the items of a transfer's evaluations are divided, each
        with the cores and GPUs of one evaluation; results are the same bytes for any number.
      cells_per_gpu: cells that share a GPU and its memory; above 1 only if `gpus_per_cell` is 1.
      device: kind of device that steps run on at `ray_address`; None takes what the nodes have when
        a step is placed. State it where an autoscaler starts without nodes.
      node_wait: how long a step, or one of its processes, may wait at `ray_address` for nodes that
        are large enough to come up, or for the hosts of a TPU VM to answer [s].
      retries: further attempts at a step whose worker died.
      profile: steps that JAX's profiler traces in every training: "10:13" traces 10 to 13, into the
        folder `profile` of the checkpoint, for XProf or TensorBoard; None traces nothing.
      microbatch: value of `microbatch` for every training that states none: a number of examples,
        or "auto" for as many as fit a device by the formula of `parcel plan`; None computes a
        device's share of the batch at once.
      deterministic: whether trainings on GPUs give the same bits each time; False saves about 6 %
        of their time, and a repeated or resumed training then gives slightly other parameters.
      rebuild_limit: most work, over all steps, that a run repeats because of changed code without
        `--rebuild` [device-hours].
      topology: chips that the study's plan is for, as "v4:8x8x4" or "h100:8"; with None, a run that
        waits for approval shows no plan.
      price: price of one such chip for an hour, in any currency; None leaves out the cost.
      mfu: share of their peak FLOP/s that GPUs are assumed to reach, in plans.
    """

    ray_address: str | None = None
    num_cpus: int | None = None
    prepare_at_once: Annotated[int, Field(ge=1, le=1000)] = 4
    cpus_per_stage: int = 2
    processes_per_stage: Annotated[int, Field(ge=1, le=1000)] = 1
    cpus_per_cell: int = 1
    processes_per_cell: Annotated[int, Field(ge=1, le=1000)] = 1
    launcher: Annotated[str, Field(min_length=1)] | None = None
    cpus_per_evaluation: Annotated[int, Field(ge=1)] | None = None
    num_gpus: Annotated[int, Field(ge=0)] | None = None
    gpus_per_stage: Annotated[int, Field(ge=0)] = 1
    gpus_per_cell: Annotated[int, Field(ge=0)] = 1
    gpus_per_evaluation: Annotated[int, Field(ge=0)] | None = None
    evaluation_pieces: Annotated[int, Field(ge=1, le=1000)] = 1
    cells_per_gpu: Annotated[int, Field(ge=1, le=20)] = 1
    device: Literal["cpu", "gpu", "tpu"] | None = None
    node_wait: Annotated[float, Field(ge=0)] = 900.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    profile: str | None = None
    microbatch: int | str | None = None
    deterministic: bool = True
    rebuild_limit: Annotated[float, Field(ge=0)] = 1.0
    topology: str | None = None
    price: Annotated[float, Field(ge=0)] | None = None
    mfu: Annotated[float, Field(gt=0, le=1)] = 0.4

    def __post_init__(self) -> None:
        # `profiled` gives (0, 0) for a text that is no pair of steps.
        first, last = self.profiled
        if self.profile is not None and not 0 < first <= last:
            raise ValueError(
                f'profile must be two steps from 1 on, such as "10:13", got {self.profile!r}.'
            )
        check_microbatch(self.microbatch)
        # Parsed for its error only: a plan parses it again.
        if self.topology is not None:
            Topology.parse(self.topology)
        if self.ray_address is not None:
            check_ray_address(self.ray_address)
        if self._launched_by[0] == "ray" and self.ray_address is None:
            raise ValueError(
                "launcher ray needs ray_address, the cluster whose nodes it places processes on; "
                "without one, leave launcher out: they are started on this machine."
            )
        if self._launched_by[0] == "tpu-vm":
            from infra.ssh.gang import check_options

            check_options(self._launched_by[1])
        # Ray's fractions of a GPU exist only below one whole GPU.
        if self.cells_per_gpu > 1 and self.gpus_per_cell != 1:
            raise ValueError(
                f"cells_per_gpu must be 1 where gpus_per_cell is not 1, got {self.cells_per_gpu} "
                f"and {self.gpus_per_cell}."
            )
        if self.cells_per_gpu > 1 and self.processes_per_cell > 1:
            raise ValueError(
                f"cells_per_gpu must be 1 where processes_per_cell is not 1, because each process "
                f"takes whole GPUs, got {self.cells_per_gpu} and {self.processes_per_cell}."
            )
        for what in ("stage", "cell"):
            self._check_processes(what)

    def _check_processes(self, what: str) -> None:
        processes, cpus, gpus = (
            getattr(self, f"{name}_per_{what}") for name in ("processes", "cpus", "gpus")
        )
        # On one machine, processes share what the step has, in equal parts; a launcher gives each
        # its own.
        if not self.launcher and (cpus % processes or gpus % processes):
            raise ValueError(
                f"processes_per_{what} must divide cpus_per_{what}={cpus} and "
                f"gpus_per_{what}={gpus}, got {processes}; without GPUs set gpus_per_{what}=0."
            )
        if processes > 1 and self.device == "tpu" and not self.launcher:
            raise ValueError(
                f"processes_per_{what} must be 1 where device is tpu, got {processes}: one process "
                f"has all chips of a host; compute.launcher starts one on each of several."
            )

    @property
    def profiled(self) -> tuple[int, int]:
        """First and last step to trace; (0, 0) for none."""
        first, _, last = (self.profile or "").partition(":")
        return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (0, 0)

    @property
    def of_stage(self) -> dict[str, Any]:
        """Resources for Stage 1, as arguments of `graph.Job`."""
        return self._resources_for("stage", self.gpus_per_stage)

    @property
    def of_cell(self) -> dict[str, Any]:
        """Resources for an intermediary, a Stage 2 or a transfer, as arguments of `graph.Job`."""
        return self._resources_for("cell", self.gpus_of_cell)

    def _resources_for(self, what: str, gpus: float) -> dict[str, Any]:
        cpus, processes = (getattr(self, f"{name}_per_{what}") for name in ("cpus", "processes"))
        launcher, (command, options) = self.launcher or "", self._launched_by
        if command in ("ray", "tpu-vm") and processes > 1:
            # The step itself computes nothing: its member processes have what they need elsewhere.
            member_options = f"--cpus {cpus} --gpus {int(gpus)} --wait {self.node_wait:g}"
            launcher = f"{command} {member_options} {options}".strip()
            cpus, gpus = 1, 0
        return {"cpus": cpus, "gpus": gpus, "processes": processes, "launcher": launcher}

    @property
    def _launched_by(self) -> tuple[str, str]:
        """The launcher's command and its options, as two texts."""
        command, _, options = (self.launcher or "").partition(" ")
        return command, options

    @property
    def gpus_of_cell(self) -> float:
        """GPUs that a cell asks for; below 1, several cells share one."""
        return self.gpus_per_cell / self.cells_per_gpu

    @property
    def cpus_of_evaluation(self) -> int:
        """Cores that a transfer's evaluations ask for."""
        return self.cpus_per_evaluation or self.cpus_per_cell

    @property
    def gpus_of_evaluation(self) -> float:
        """GPUs that a transfer's evaluations ask for."""
        gpus = self.gpus_per_evaluation
        return self.gpus_of_cell if gpus is None else float(gpus)


def check_ray_address(address: str) -> None:
    """Refuses a text that is no address of a Ray cluster.

    Raises:
      ValueError: naming the forms that are accepted.
    """
    if address.startswith("ray://"):
        raise ValueError(
            f"ray_address must not be Ray Client's, got {address!r}: every step would end with its "
            f'connection. Give the job server, "http://host:8265", or "host:port" of the head.'
        )
    rest = address.removeprefix("http://").removeprefix("https://")
    host, _, port = rest.rstrip("/").rpartition(":")
    if address != "auto" and not (host and "/" not in rest.rstrip("/") and port.isdigit()):
        raise ValueError(
            f'ray_address must be "http://host:port" of a job server, "host:port" of a head, or '
            f'"auto", got {address!r}.'
        )
