"""Studies and sweeps as the UI offers them: flows with short forms, and their deployments."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from prefect import Flow, flow
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.deployments.runner import RunnerDeployment
from prefect.runtime import deployment
from prefect.states import Completed
from prefect.types.entrypoint import EntrypointType

from flows.config.server_limits import (
    Limits,
    check_carried_studies,
    is_limited,
    limited,
    limits_of,
)
from flows.config.user_step import UserStep
from flows.graph.graph import Phase
from flows.report.markdown import plain
from flows.run.limits import ALWAYS, SweepLimits
from flows.run.request import RunRequest
from flows.run.retry_policy import failures_by_node, hold_given_up
from flows.run.run import Run
from flows.sweep.firings import skipped
from flows.sweep.form_values import DeployedStudies, open_form_store, study_of_form, sweep_of_form
from flows.sweep.sweep import NOTHING, Sweep, SweepRun, describe_sweep
from infra.prefect.best_effort import best_effort
from infra.prefect.deployed import describe, name_run

_HELP = {
    "study": "demo, a YAML file, or the name of a study that ran in the store.",
    "data_root": "Folder or gs://bucket/prefix (s3://, az://) with the raw data; empty: as in the "
    "study.",
    "steps": "Your own steps, instead of the study's; empty: as in the study.",
    "overrides": "Changes to the config, as key.path=value: num_seeds=5, stage1.peak_lr=1.0e-3.",
    "until": "Last phase to run.",
    "rebuild": "Steps to make again at any cost if their code has changed; * for all.",
    "approve": "Wait for approval on the run's page, which first lists what would be made.",
    "failed": "Run only the steps that failed in the study's last run, and their inputs.",
    "store": "Store of the artifacts: a folder, or gs://bucket/prefix (s3://, az://).",
    "add": "What the sweep adds to the study; existing artifacts are reused.",
    "when": "When the cells of the sweep may begin.",
}
"""Field of a form -> its help text."""
_FORMS = {
    "study": "Runs a study, from raw data to the results table; existing artifacts are reused.",
    "sweep": "Adds seeds, methods, benchmarks or budgets to a study, and runs what is missing.",
}
"""Flow -> description of its deployment."""


@flow(name="study", persist_result=False)
def study_form(
    study: str = "demo",
    data_root: str = "",
    steps: tuple[UserStep, ...] = (),
    overrides: tuple[str, ...] = (),
    approve: bool = False,
    until: Phase = "report",
    rebuild: tuple[str, ...] = (),
    failed: bool = False,
    store: str = ".parcel",
    given: dict[str, Any] | None = None,
) -> Any:
    """Runs a study that a form names; see `run.Run` and `form_values`."""
    with limited(_limits_of_run(store)):
        check_carried_studies(given)
        opened = open_form_store(store)
        step_values = [dataclasses.asdict(step) for step in steps]
        config = study_of_form(study, opened, overrides, data_root, given, step_values)
        best_effort(name_run, config.name)
        if (state := skipped(opened)) is not None:
            return state
        request = RunRequest(
            config=config, until=until, rebuild=rebuild, approve=approve, failed=failed
        )
        return Run(request, opened).execute()


@flow(name="sweep", persist_result=False)
def sweep(
    study: str = "demo",
    add: Sweep = NOTHING,
    when: SweepLimits = ALWAYS,
    overrides: tuple[str, ...] = (),
    approve: bool = False,
    store: str = ".parcel",
    given: dict[str, Any] | None = None,
) -> Any:
    """Runs the missing steps of a sweep, and publishes what its next firing would run."""
    with limited(_limits_of_run(store)):
        check_carried_studies(given)
        # Checked as a whole before the first pass, so that a slip shows before anything runs.
        sweep_run = sweep_of_form(study, open_form_store(store), overrides, add, given)
        best_effort(name_run, sweep_run.config.name)
        if (state := skipped(sweep_run.store)) is not None:
            return state
        return finish_sweep(sweep_run, run_of_sweep(sweep_run, when, approve=approve).execute())


def run_of_sweep(sweep_run: SweepRun, limits: SweepLimits, *, approve: bool) -> Run:
    """Returns the run of what a sweep is missing."""
    return Run(
        RunRequest(config=sweep_run.config, approve=approve, limits=limits),
        sweep_run.store,
        passes=sweep_run.passes(),
        hold_rule=hold_given_up(sweep_run.store),
    )


def finish_sweep(sweep_run: SweepRun, state: State[Any]) -> State[Any]:
    """Publishes what a sweep's next firing would run; returns the state that its run ends in."""
    best_effort(_publish_next_sweep, sweep_run)
    if state.is_completed() and state.message == "nothing to run":
        return Completed(message=sweep_run.why_nothing())
    return state


def _limits_of_run(store: str) -> Limits | None:
    """Returns the limits of a deployment's run that was told none; None for every other run."""
    # Its parameters came through the server, whoever started it and where.
    return (
        limits_of({"parameters": {"store": store}}) if deployment.id and not is_limited() else None
    )


def describe_next_sweep(sweep_run: SweepRun) -> Iterator[str]:
    """Yields lines on the work that a firing would do if it began now."""
    yield from sweep_run.describe_redundant_settings()
    next_pass = next(sweep_run.passes(), None)
    if next_pass is None:
        yield sweep_run.why_nothing()
        return
    yield from describe_sweep(next_pass, failures_by_node(sweep_run.store, next_pass))


def describe_deployment(sweep_run: SweepRun) -> str:
    """Returns the description of a deployment that runs a sweep, in Markdown."""
    items = "\n".join(f"- {plain(line)}" for line in describe_next_sweep(sweep_run))
    return f"{_FORMS['sweep']}\n\n**The next firing of {plain(sweep_run.config.name)}**\n\n{items}"


def _publish_next_sweep(sweep_run: SweepRun) -> None:
    """Publishes what the next firing would run, as an artifact and as the deployment's text."""
    text, context = describe_deployment(sweep_run), FlowRunContext.get()
    key = f"next-{sweep_run.config.name}"
    create_markdown_artifact(text, key=key, description="The next firing")
    if context is not None and context.flow_run and context.flow_run.deployment_id:
        describe(context.flow_run.deployment_id, text)


def deployments_of(
    study: str,
    store: str,
    *,
    any_store: bool,
    name: str | None = None,
    deployed_studies: DeployedStudies | None = None,
    **options: Any,
) -> list[RunnerDeployment]:
    """Returns the deployments `study/NAME` and `sweep/NAME`, not registered yet.

    Args:
      study: the study that their forms are filled in with.
      store: the store of their runs [URI].
      name: name of both deployments; None names each after its flow.
      any_store: whether the forms may name another store.
      deployed_studies: studies that the deployments carry with them, by name; the forms do not show
        them.
      **options: further arguments of Prefect's `Flow.to_deployment`.
    """
    parameters: dict[str, Any] = {"study": study, "store": store}
    if deployed_studies:
        parameters["given"] = dict(deployed_studies)
    deployments = []
    for form_flow in (study_form, sweep):
        made: Any = cast(Flow[..., Any], form_flow).to_deployment(
            name=name or form_flow.name,
            description=_FORMS[form_flow.name],
            parameters=parameters,
            tags=["parcel"],
            entrypoint_type=EntrypointType.MODULE_PATH,
            **options,
        )
        # Schedules set in the UI stay; an empty list would delete them.
        made.model_fields_set.discard("schedules")
        # The form is drawn from this schema: what is not in it cannot be entered there.
        schema = made._parameter_openapi_schema
        _trim_form(schema, None if any_store else store)
        _offer_methods(
            schema, [m for values in (deployed_studies or {}).values() for m in values["methods"]]
        )
        deployments.append(made)
    return deployments


def _trim_form(schema: Any, store: str | None) -> None:
    """Gives every field of a form its help text, and removes what people should not see."""
    fields: dict[str, Any] = schema.properties
    fields.pop("given", None)
    for name, field in fields.items():
        field["description"] = _HELP[name]
    if store is not None:  # The server then refuses another store; the run checks it again.
        fields["store"]["enum"] = [store]
    definitions: Mapping[str, Any] = schema.definitions
    for definition in definitions.values():
        definition.pop("description", None)


def _offer_methods(schema: Any, methods: Sequence[str]) -> None:
    """Adds a study's methods to those that a sweep's form offers: users' connectors among them."""
    for field in ("methods", "compare"):
        if "Sweep" in schema.definitions:
            offered_methods = schema.definitions["Sweep"]["properties"][field]["items"]["enum"]
            offered_methods += [method for method in methods if method not in offered_methods]
