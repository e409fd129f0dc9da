"""`parcel doctor`: checks what is installed, reachable and writable, and which engines work."""

from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption

doctor_app = typer.Typer()


@doctor_app.command(epilog="Example: parcel doctor mine.yaml --store gs://bucket/studies")
def doctor(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG] [key.path=value …]",
            help="A study, to check the raw data, the cluster and the trackers that it names.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(
            help="Try only this engine: jax, beam, ray, video, tf or none.", show_default=False
        ),
    ] = None,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Checks everything a study needs, says what is wrong and the cure; exit code 1 if any is.

    It writes a file to the store and deletes it, and runs a small trial of each engine.
    """
    from flows.machine.doctor import examine_setup
    from flows.machine.engines import ENGINES
    from infra.errors import ConfigError

    # `--engine none` tries none of them: a quick look at the rest.
    engines = [*ENGINES] if engine is None else [name for name in engine if name != "none"]
    if unknown := set(engines) - {*ENGINES}:
        raise ConfigError(
            f"--engine must be one of {', '.join(ENGINES)} or none, got {min(unknown)!r}."
        )
    config = None
    if arguments:
        from parcel.cli.run import load_study

        config = load_study(arguments, store)
    bad = 0
    #   ok   store      .parcel can be read and written
    #   BAD  clock      it differs from the store's by 95 s
    #                   → set this machine's clock by NTP; leases lapse by the store's clock
    for finding in examine_setup(store, config, engines):
        bad += finding.state == "bad"
        sign = {"ok": "ok  ", "note": "note", "bad": "BAD "}[finding.state]
        typer.echo(f"{sign} {finding.what:<10} {finding.detail}")
        if finding.cure:
            typer.echo(f"{'':<15} → {finding.cure}")
    if bad:
        raise typer.Exit(1)
