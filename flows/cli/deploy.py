"""`parcel deploy`: a study for the workers of a Prefect server."""

from typing import Annotated, Any

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption
from flows.cli.run import StudyArguments, load_study

deploy_app = typer.Typer()


@deploy_app.command(
    epilog="Example: parcel deploy mine.yaml --pool gpus --type kubernetes "
    "--image lab/parcel:1 --store gs://lab/studies --cron '0 6 * * *'"
)
def deploy(
    pool: Annotated[str, typer.Option(help="Work pool; made if there is none of that name.")],
    arguments: StudyArguments = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="process|docker|kubernetes",
            help="Type of the pool; that of the pool there is, or process.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Container image of the runs; of a docker or kubernetes pool."),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    cron: Annotated[
        str | None, typer.Option(help="When it runs by itself; left out, schedules stay.")
    ] = None,
    timezone: Annotated[str, typer.Option(help="Of --cron.")] = "UTC",
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
    any_store: Annotated[bool, typer.Option(help="Let the form name another store.")] = False,
    any_runner: Annotated[bool, typer.Option(help="Let the form name a Beam runner.")] = False,
) -> None:
    """Registers a study with a work pool of the Prefect server at PREFECT_API_URL."""
    config = load_study(arguments)
    variables = _pairs("--job-variable", job_variable)
    environment = _pairs("--env", env)
    checked = _checked_type(kind)
    from flows.study.deploy import Target
    from flows.study.deploy import deploy as register

    target = Target(
        store=store,
        pool=pool,
        kind=checked,
        image=image,
        variables={name: _yaml(name, text) for name, text in variables.items()},
        environment=environment,
        cron=cron,
        timezone=timezone,
        any_store=any_store,
        any_runner=any_runner,
    )
    for line in register(config, target):
        typer.echo(line)


def _checked_type(kind: str | None) -> Any:
    from flows.study.load import ConfigError

    types = ("process", "docker", "kubernetes")
    if kind is not None and kind not in types:
        raise ConfigError(f"--type must be one of {', '.join(types)}, got {kind!r}.")
    return kind


def _pairs(option: str, texts: list[str] | None) -> dict[str, str]:
    from flows.study.load import ConfigError

    pairs = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not (separator and name):
            raise ConfigError(f"{option} must look like NAME=VALUE, got {text!r}.")
        pairs[name] = value
    return pairs


def _yaml(name: str, text: str) -> Any:
    import yaml

    from flows.study.load import ConfigError

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"--job-variable {name} must be YAML, got {text!r}.") from None
