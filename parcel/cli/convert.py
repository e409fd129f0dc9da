"""`parcel convert`: converts other codebases' checkpoints to ours, and back."""

from pathlib import Path
from typing import Annotated

import typer

convert_app = typer.Typer()


@convert_app.command(
    epilog="Example: parcel convert pt_3b_224.bf16.npz pali3b --tokenizer gemma_tokenizer.model"
)
def convert(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SRC] DST",
            help="SRC: big_vision .npz, .safetensors, a folder of them, or a checkpoint of ours, "
            "which is exported to DST.safetensors, DST.npz or a Hugging Face folder.",
        ),
    ],
    check: Annotated[
        Path | None,
        typer.Option(help="Reference inputs and outputs (.npz) to run the result against."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="Tokenizer to put into our checkpoint: a SentencePiece file, or Llama 3's "
            "tokenizer.json."
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Hugging Face config.json, if there is none beside SRC.")
    ] = None,
    vision: Annotated[
        Path | None,
        typer.Option(
            help="Stage 0 instead of SRC, with --text: an image tower, as big_vision's .npz or a "
            "Hugging Face folder (SigLIP, SigLIP 2, CLIP, or a model with one of them)."
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            help="Stage 0 instead of SRC, with --vision: a decoder, as Gemma 2's Orbax folder or a "
            "Hugging Face folder (Gemma 2, Gemma 3, Llama, or a model with one of them)."
        ),
    ] = None,
    projector: Annotated[
        str, typer.Option(help="Layers between the two of a Stage 0: linear (default) or mlp.")
    ] = "",
    dtype: Annotated[
        str,
        typer.Option(help="Dtype of an export: float32 or bfloat16; default: the imported dtype."),
    ] = "",
    seed: Annotated[int, typer.Option(help="Seed of what a Stage 0 adds.")] = 0,
) -> None:
    """Converts checkpoints: big_vision or Hugging Face to ours, ours to either."""
    from infra.errors import ConfigError
    from model.checkpoint.convert import Request
    from model.checkpoint.convert import convert_checkpoint as lines_of
    from model.checkpoint.target import RequestError
    from pipelines.fetch.fetch import check_fetched

    try:
        # The request checks itself when built, before any weight is read.
        request = Request(
            paths=tuple(paths),
            vision=vision,
            text=text,
            projector=projector,
            tokenizer=tokenizer,
            config=config,
            dtype=dtype,
            seed=seed,
            check=check,
        )
        check_fetched(request.paths[0])
        for line in lines_of(request):
            typer.echo(line)
        # Imported only if it is asked for: this check runs the model.
        if request.check is not None:
            from model.decode.reference_check import check_file

            for line in check_file(request.paths[-1], request.check):
                typer.echo(line)
    except RequestError as error:
        raise ConfigError(str(error)) from None
