"""`parcel flops`: the paper's efficiency table."""

from typing import Annotated

import typer

flops_app = typer.Typer()


@flops_app.command(epilog="Example: parcel flops --budget 64 --parts")
def flops(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]", help="A study's YAML or a checkpoint; none: PaliGemma 2 3B."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Every budget of every connector, unrounded.")
    ] = False,
    budget: Annotated[
        list[int] | None, typer.Option(help="Soft tokens per image; may be given repeatedly.")
    ] = None,
    image_px: Annotated[
        int | None, typer.Option(help="Side of the input in pixels, instead of the model's own.")
    ] = None,
    connector: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A connector of your own, too: file.py:Class, module:Class or an entry point.",
        ),
    ] = None,
    parts: Annotated[bool, typer.Option(help="Show what each part of the model costs.")] = False,
) -> None:
    """Prints the FLOPs and the key-value cache of a prefill: the paper's efficiency table."""
    from flows.report.flops import flops_json as json_of
    from flows.report.flops import flops_text
    from flows.study.flops import flops_models as models_of

    by_backbone = models_of(config, image_px, connector or ())
    if as_json:
        typer.echo(json_of(by_backbone, budget), nl=False)
        return
    tables = [
        (f"{backbone}: " if backbone else "") + flops_text(models, budget, parts=parts)
        for backbone, models in by_backbone.items()
    ]
    typer.echo("\n".join(tables), nl=False)
