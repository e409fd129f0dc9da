"""How many processes train each stage of a study, on which hosts, and what starts them."""

from flows.config.compute import ComputeConfig
from flows.report.text_lists import abbreviate_list
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig

_MAX_NAMES = 4
"""Most stages named in a line; the others are counted."""


def describe_processes(config: StudyConfig) -> str:
    """Returns a line on the processes of each training; "" where nothing is trained.

    processes: 64 for stage1 and intermediary, one on each host of v4:8x8x4, by srun; 1 for each
    transfer
    """
    compute = config.compute
    # A dict in place of a set, so that stages stand in their order.
    names: dict[int, dict[str, None]] = {}
    for stage in (stage for study in config.backbone_studies for stage in stages_of(study)):
        processes = compute.stage_processes if stage.is_shared else compute.cell_processes
        names.setdefault(processes, {})[stage.name] = None
    if any(view.fine_tunings for view in config.views):
        names.setdefault(compute.transfer_processes, {})["each transfer"] = None
    if not names:
        return ""
    parts = [
        f"{processes} for {abbreviate_list([*trained], _MAX_NAMES)}"
        f"{_describe_process_hosts(compute, processes)}"
        for processes, trained in names.items()
    ]
    line = f"processes: {'; '.join(parts)}"
    if compute.lacks_launcher:
        return f"{line}. {launcher_needed(compute)}"
    if compute.launcher and set(names) == {1}:
        return (
            f"{line}. compute.launcher starts none of them: neither compute.topology nor "
            f"compute.processes_per_stage is of several hosts."
        )
    return line


def launcher_needed(compute: ComputeConfig) -> str:
    """Returns a line on what a topology of several hosts needs, and how else it would run."""
    return (
        f"compute.launcher must be what starts a process on each of the {compute.num_hosts} hosts "
        f"of compute.topology={compute.topology}, got none: srun, mpirun, ray or tpu-vm "
        f"(docs/howto/gang.md). To train on one host, set compute.topology to its chips."
    )


def _describe_process_hosts(compute: ComputeConfig, processes: int) -> str:
    if processes == 1:
        return ""
    by = f", by {compute.launcher.partition(' ')[0]}" if compute.launcher else ""
    if compute.chips is None or not (by or compute.lacks_launcher):
        return by or ", all on one machine"
    slices = processes // compute.num_hosts
    several = f"{slices} x " if slices > 1 else ""
    return f", one on each host of {several}{compute.topology}{by}"
