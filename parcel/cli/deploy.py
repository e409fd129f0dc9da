"""`parcel deploy`: registers a study for the workers of a Prefect server."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption
from parcel.cli.run import StudyArguments, load_study

deploy_app = typer.Typer()


@deploy_app.command(
    epilog="Example: parcel deploy mine.yaml --pool gpus --type kubernetes "
    "--image lab/parcel:1 --store gs://lab/studies --cron '0 6 * * *'"
)
def deploy(
    pool: Annotated[str, typer.Option(help="Work pool; created if there is none of that name.")],
    arguments: StudyArguments = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="process|docker|kubernetes",
            help="Type of the pool; default: that of the existing pool, else process.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Container image of the runs; for docker and kubernetes pools."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    cron: Annotated[
        str | None, typer.Option(help="Schedule of the runs; without it, existing schedules stay.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of --cron.")] = "UTC",
    job_variable: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A job variable of the pool, in YAML.", show_default=False
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="An environment variable of the runs.", show_default=False
        ),
    ] = None,
    alert: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS|@FILE",
            help="Address to alert when a run fails or stalls: a webhook's https://, mailto://, or "
            "TYPE/NAME of a block; @FILE holds one per line, and keeps them off the command line.",
            show_default=False,
        ),
    ] = None,
    stall: Annotated[
        float,
        typer.Option(
            metavar="MINUTES", min=1, help="Time without progress after which a run stalls."
        ),
    ] = 60.0,
    cap: Annotated[
        float | None,
        typer.Option(
            metavar="HOURS",
            help="Longest time that a run may take before an alert.",
            show_default=False,
        ),
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cap-cancels", help="Cancel a run that exceeds --cap.")
    ] = False,
    any_store: Annotated[bool, typer.Option(help="Let the form name another store.")] = False,
    any_runner: Annotated[
        bool,
        typer.Option(help="Let a run name a Beam runner, a launcher, or code by file or module."),
    ] = False,
) -> None:
    """Registers a study with a work pool of the Prefect server at PREFECT_API_URL."""
    # Most mistakes show here, before Prefect is imported.
    config = load_study(arguments, store)
    variables = _parse_pairs("--job-variable", job_variable)
    environment = _parse_pairs("--env", env)
    checked = _check_pool_type(kind)
    from infra.prefect.settings import import_prefect

    import_prefect()
    from flows.machine.deploy import DeploymentTarget
    from flows.machine.deploy import deploy_study as register
    from infra.prefect.alerts import Alerts

    target = DeploymentTarget(
        store=store,
        pool=pool,
        kind=checked,
        image=image,
        variables={name: _parse_yaml(name, text) for name, text in variables.items()},
        environment=environment,
        cron=cron,
        timezone=timezone,
        any_store=any_store,
        any_runner=any_runner,
    )
    alerts = Alerts(addresses=_alert_addresses(alert), stall=stall, cap=cap, cancel=cancel)
    for line in register(config, target, alerts):
        typer.echo(line)
    if config.compute.lacks_launcher:
        from flows.study.processes import launcher_needed

        typer.echo(f"its runs will be refused: {launcher_needed(config.compute)}", err=True)


def _check_pool_type(kind: str | None) -> Any:
    from infra.errors import ConfigError

    types = ("process", "docker", "kubernetes")
    if kind is not None and kind not in types:
        raise ConfigError(f"--type must be one of {', '.join(types)}, got {kind!r}.")
    return kind


def _alert_addresses(options: list[str] | None) -> list[str]:
    from infra.errors import ConfigError

    #   --alert mailto://me@lab.org --alert @alerts.txt      one address, and one per line of a file
    addresses: list[str] = []
    for address in options or []:
        if not address.startswith("@"):
            addresses.append(address)
            continue
        try:
            lines = Path(address[1:]).expanduser().read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise ConfigError(f"--alert {address}: {error.strerror}.") from None
        addresses += [line.strip() for line in lines if line.strip()]
    return addresses


def _parse_pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    from infra.errors import ConfigError

    pairs = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not (separator and name):
            raise ConfigError(f"{option} must look like NAME=VALUE, got {text!r}.")
        pairs[name] = value
    return pairs


def _parse_yaml(name: str, text: str) -> Any:
    from infra.errors import ConfigError
    from infra.yaml_text import YamlError, load_yaml

    try:
        return load_yaml(text)
    except YamlError as error:
        raise ConfigError(
            f"--job-variable {name} must be YAML, got {text!r:.80}: {error}"
        ) from None
