"""Config of where the steps of a study run, and with how many cores and GPUs each."""

import dataclasses
import functools
import re
from typing import Annotated, Any, Literal

from pydantic import Field

from infra.chips.topology import Topology
from infra.errors import ConfigError
from model.train.config import check_microbatch, check_pack


@dataclasses.dataclass(frozen=True)
class StepChips:
    """The chips that one step gets.

    Attributes:
      topology: the chips of all its processes.
      share: part of each chip's memory that is the step's; below 1 where cells share a GPU.
    """

    topology: Topology
    share: float = 1.0

    @property
    def count(self) -> int:
        """Number of chips."""
        return self.topology.num_chips

    @property
    def program_bytes(self) -> float:
        """Memory of each chip that the step's programs may use [bytes]."""
        return self.share * self.topology.chip.program_bytes


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
        from the last saved checkpoint. None: one for each host of `topology`.
      cpus_per_cell: cores of each intermediary or transfer.
      processes_per_cell: processes that train each intermediary, Stage 2 or transfer together.
        None: one for each host of `topology`, and one for a transfer.
      launcher: command that starts several such processes on other hosts: "srun" inside a Slurm
        allocation, "mpirun", "ray" for nodes of the cluster that the step runs on, or "tpu-vm
        --name NAME --zone ZONE" for the hosts of a TPU VM; it is called with `-n` and their
        number. Each process then has the cores and GPUs asked for on its own host, and all hosts
        must see the store, a bucket or a shared folder. None starts as many as are stated on one
        machine.
      cpus_per_evaluation: cores of a transfer's evaluations; None takes `cpus_per_cell`.
      num_gpus: GPUs of the cluster started here; None takes all that JAX can use.
      gpus_per_stage: GPUs of Stage 1, where there are any; their number must divide its batch.
        Where there are TPUs instead, a step that asks for GPUs takes all chips of one host. None:
        those of a host of `topology` for each process on a host of its own, else 1.
      gpus_per_cell: GPUs of each intermediary or transfer, where there are any; None as above.
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
      pack: value of `pack` for every training whose own is "auto": that packs texts on accelerators
        as the data need; None packs none.
      deterministic: whether trainings on GPUs give the same bits each time; False saves about 6 %
        of their time, and a repeated or resumed training then gives slightly other parameters.
      rebuild_limit: most work, over all steps, that a run repeats because of changed code without
        `--rebuild` [device-hours].
      topology: chips that each pretraining stage is planned for and trained on, as "v4:8x8x4" or
        "h100:8". Beyond one host `launcher` must start a process on each of its hosts. A plan has
        each step on those of them that its processes get. With None, a run that waits for approval
        shows no plan.
      price: price of one such chip for an hour, in any currency; None leaves out the cost.
      mfu: share of their peak FLOP/s that chips are assumed to reach in plans, where no compiler
        tells their time.
    """

    ray_address: str | None = None
    num_cpus: int | None = None
    prepare_at_once: Annotated[int, Field(ge=1, le=1000)] = 4
    cpus_per_stage: int = 2
    processes_per_stage: Annotated[int, Field(ge=1, le=1000)] | None = None
    cpus_per_cell: int = 1
    processes_per_cell: Annotated[int, Field(ge=1, le=1000)] | None = None
    launcher: Annotated[str, Field(min_length=1)] | None = None
    cpus_per_evaluation: Annotated[int, Field(ge=1)] | None = None
    num_gpus: Annotated[int, Field(ge=0)] | None = None
    gpus_per_stage: Annotated[int, Field(ge=0)] | None = None
    gpus_per_cell: Annotated[int, Field(ge=0)] | None = None
    gpus_per_evaluation: Annotated[int, Field(ge=0)] | None = None
    evaluation_pieces: Annotated[int, Field(ge=1, le=1000)] = 1
    cells_per_gpu: Annotated[int, Field(ge=1, le=20)] = 1
    device: Literal["cpu", "gpu", "tpu"] | None = None
    node_wait: Annotated[float, Field(ge=0)] = 900.0
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    profile: str | None = None
    microbatch: int | str | None = None
    pack: int | str | None = "auto"
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
        check_pack(self.pack)
        _ = self.chips
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
        if self.cells_per_gpu > 1 and self.gpus_per_cell not in (None, 1):
            raise ValueError(
                f"cells_per_gpu must be 1 where gpus_per_cell is not 1, got {self.cells_per_gpu} "
                f"and {self.gpus_per_cell}."
            )
        if self.cells_per_gpu > 1 and self.cell_processes > 1:
            raise ValueError(
                f"cells_per_gpu must be 1 where processes_per_cell is not 1, because each process "
                f"takes whole GPUs, got {self.cells_per_gpu} and {self.cell_processes}."
            )
        for what in ("stage", "cell"):
            self._check_compute_processes(what)

    def _check_compute_processes(self, what: str) -> None:
        processes: int | None = getattr(self, f"processes_per_{what}")
        gpus: int | None = getattr(self, f"gpus_per_{what}")
        self._check_hosts(what, processes, gpus)
        if processes is None:
            return
        # On one machine, processes share what the step has, in equal parts; a launcher gives each
        # its own.
        cpus, gpus = getattr(self, f"cpus_per_{what}"), 1 if gpus is None else gpus
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

    def _check_hosts(self, what: str, processes: int | None, gpus: int | None) -> None:
        """Refuses what a topology of several hosts contradicts."""
        if self.num_hosts == 1 or self.chips is None:
            return
        # More slices than one are a multiple of its hosts. A cell may have a host to itself.
        alone = processes == 1 and what == "cell"
        if processes is not None and processes % self.num_hosts and not alone:
            raise ValueError(
                f"processes_per_{what} must be {self.num_hosts}, one for each host of "
                f"topology={self.topology}, or a multiple for as many slices, got {processes}; "
                f"left out, it is {self.num_hosts}."
            )
        each = self.chips.chips_per_host
        if gpus and gpus != each and self.chips.chip.is_gpu and not alone:
            raise ValueError(
                f"gpus_per_{what} must be {each}, the GPUs of a host of topology={self.topology}, "
                f"got {gpus}; left out, it is {each}."
            )
        command, options = self._launched_by
        stated = re.search(r"--topology[ =](\S+)", options) if command == "ray" else None
        sides = "x".join(map(str, self.chips.shape))
        if stated and stated[1] != sides:
            raise ValueError(
                f"launcher ray must have --topology {sides}, that of topology={self.topology}, got "
                f"{stated[1]}; left out, it is {sides}."
            )

    @functools.cached_property
    def chips(self) -> Topology | None:
        """The topology; None without one."""
        return None if self.topology is None else Topology.parse(self.topology)

    @property
    def planned_chips(self) -> Topology:
        """The topology, for a plan.

        Raises:
          ConfigError: if there is none.
        """
        if self.chips is None:
            raise ConfigError(
                "compute.topology must name the chips of a plan, such as v4:8x8x4 or h100:8, got "
                "nothing; --topology does so, too."
            )
        return self.chips

    @property
    def chips_of_stage(self) -> StepChips:
        """The chips that Stage 1 gets; raises as `planned_chips`."""
        several = self._has_hosts(self.stage_processes, self.processes_per_stage)
        return self._chips_of(self.stage_processes, self.gpus_per_stage, several=several)

    @property
    def chips_of_cell(self) -> StepChips:
        """The chips that a pretraining stage but Stage 1 gets; raises as `planned_chips`."""
        several = self._has_hosts(self.cell_processes, self.processes_per_cell)
        return self._chips_of(
            self.cell_processes, self.gpus_per_cell, several=several, cells=self.cells_per_gpu
        )

    @property
    def chips_of_transfer(self) -> StepChips:
        """The chips that a transfer gets; raises as `planned_chips`."""
        several = self._has_hosts(self.transfer_processes, self.processes_per_cell)
        return self._chips_of(
            self.transfer_processes, self.gpus_per_cell, several=several, cells=self.cells_per_gpu
        )

    @property
    def chips_of_evaluation(self) -> StepChips:
        """The chips that a job of a transfer's evaluations gets; raises as `planned_chips`."""
        cells = self.cells_per_gpu if self.gpus_per_evaluation is None else 1
        gpus = int(self.gpus_of_evaluation * cells)
        return self._chips_of(1, gpus, several=False, cells=cells)

    def _has_hosts(self, processes: int, stated: int | None) -> bool:
        """Returns whether each process has a host to itself, or would have it with a launcher."""
        return processes > 1 and (self.launcher is not None or stated is None)

    def _chips_of(
        self, processes: int, gpus: int | None, *, several: bool, cells: int = 1
    ) -> StepChips:
        topology = self.planned_chips
        each, hosts = topology.chips_per_host, processes if several else 1
        # A process has all TPUs of its host. GPUs are asked for, and a host has no more than it
        # has; a number for one machine is that of all its processes together.
        if topology.chip.is_gpu:
            asked = gpus if gpus is not None else each if several else 1
            each = min(max(asked, 1), each)
        return StepChips(topology=topology.with_chips(hosts * each), share=1 / cells)

    @property
    def num_hosts(self) -> int:
        """Number of hosts of the topology; 1 without one."""
        return 1 if self.chips is None else self.chips.num_hosts

    @property
    def lacks_launcher(self) -> bool:
        """Whether trainings have a process on each of several hosts, which nothing would start."""
        stated = (self.processes_per_stage, self.processes_per_cell)
        return self.num_hosts > 1 and not self.launcher and None in stated

    @property
    def stage_processes(self) -> int:
        """Number of processes that train Stage 1."""
        return self.num_hosts if self.processes_per_stage is None else self.processes_per_stage

    @property
    def cell_processes(self) -> int:
        """Number of processes that train each pretraining stage but Stage 1."""
        return self.num_hosts if self.processes_per_cell is None else self.processes_per_cell

    @property
    def transfer_processes(self) -> int:
        """Number of processes that train each transfer."""
        return self.processes_per_cell or 1

    @property
    def profiled(self) -> tuple[int, int]:
        """First and last step to trace; (0, 0) for none."""
        first, _, last = (self.profile or "").partition(":")
        return (int(first), int(last)) if first.isdecimal() and last.isdecimal() else (0, 0)

    @property
    def of_stage(self) -> dict[str, Any]:
        """Resources for Stage 1, as arguments of `graph.Job`."""
        processes = self.stage_processes
        return self._job_resources(
            processes, self.cpus_per_stage, self._gpus_of(self.gpus_per_stage, processes)
        )

    @property
    def of_cell(self) -> dict[str, Any]:
        """Resources for a pretraining stage but Stage 1, as arguments of `graph.Job`."""
        return self._resources_of_cell(self.cell_processes)

    @property
    def of_transfer(self) -> dict[str, Any]:
        """Resources for a transfer, as arguments of `graph.Job`."""
        return self._resources_of_cell(self.transfer_processes)

    def _resources_of_cell(self, processes: int) -> dict[str, Any]:
        gpus = self._gpus_of(self.gpus_per_cell, processes) / self.cells_per_gpu
        return self._job_resources(processes, self.cpus_per_cell, gpus)

    def _gpus_of(self, stated: int | None, processes: int) -> float:
        if stated is not None:
            return stated
        has_hosts = processes > 1 and self.launcher and self.chips is not None
        return self.chips.chips_per_host if has_hosts and self.chips is not None else 1

    def _job_resources(self, processes: int, cpus: int, gpus: float) -> dict[str, Any]:
        launcher, (command, options) = self.launcher or "", self._launched_by
        if command in ("ray", "tpu-vm") and processes > 1:
            # The step itself computes nothing: its member processes have what they need elsewhere.
            member_options = f"--cpus {cpus} --gpus {int(gpus)} --wait {self.node_wait:g}"
            slice_options = self._slice_options if gpus else ""
            launcher = f"{command} {member_options} {slice_options}{options}".strip()
            cpus, gpus = 1, 0
        return {"cpus": cpus, "gpus": gpus, "processes": processes, "launcher": launcher}

    @property
    def _slice_options(self) -> str:
        """What Ray needs to know of a TPU slice of several hosts, unless the launcher says it."""
        command, options = self._launched_by
        if command != "ray" or "--topology" in options or self.chips is None:
            return ""
        if self.num_hosts == 1 or self.chips.chip.is_gpu:
            return ""
        sides, chip = "x".join(map(str, self.chips.shape)), self.chips.chip
        return (
            f"--topology {sides} --accelerator {chip.ray_type} --chips {self.chips.chips_per_host} "
        )

    @property
    def _launched_by(self) -> tuple[str, str]:
        """The launcher's command and its options, as two texts."""
        command, _, options = (self.launcher or "").partition(" ")
        return command, options

    @property
    def gpus_of_cell(self) -> float:
        """GPUs that a cell asks for; below 1, several cells share one."""
        return (1 if self.gpus_per_cell is None else self.gpus_per_cell) / self.cells_per_gpu

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
