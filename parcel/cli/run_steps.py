"""The steps of a run, from its record."""

from flows.graph.graph import graph_of
from flows.graph.inputs import read_inputs
from flows.lookup.runs import ended_run_records
from flows.steps.kind import Step
from flows.study.load import check_config
from infra.errors import ConfigError
from infra.store.records import PRUNED
from infra.store.store import Store


def steps_of_run(store: Store, key: str) -> dict[str, Step]:
    """Returns the steps, by name, of the newest run that has an artifact; {} if there is none.

    Args:
      store: the store of the run.
      key: key of the artifact.
    """
    runs = [
        r for r in ended_run_records(store).values() if key in (*r["artifacts"], *r.get(PRUNED, ()))
    ]
    if not runs:
        return {}
    newest = max(runs, key=lambda record: record["finished"])
    try:
        study = check_config(newest["config"], source=newest["name"])
        graph = graph_of(study, inputs=read_inputs(study, store))
    except ConfigError:  # For example, its raw data are not on this machine.
        return {}
    return {step.name: step for step in graph.steps}
