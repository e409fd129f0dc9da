"""Commands of `parcel` that need a model and no study. Heavy imports are inside them."""

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import DEFAULT_STORE, StoreOption

model_app = typer.Typer()


@model_app.command(epilog="Example: parcel flops --budget 64 --parts")
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
        int | None, typer.Option(help="Side of the input instead of the model's own [pixels].")
    ] = None,
    parts: Annotated[bool, typer.Option(help="Show what each part of the model costs.")] = False,
) -> None:
    """Prints the FLOPs and the key-value cache of a prefill: the paper's efficiency table."""
    from flows.commands import flops as efficiency

    models = efficiency.models(config, image_px)
    if as_json:
        typer.echo(efficiency.as_json(models, budget), nl=False)
    else:
        typer.echo(efficiency.as_text(models, budget, parts=parts), nl=False)


@model_app.command(
    epilog='Example: parcel predict checkpoint/ cat.jpg --prompt "caption en" --budget 64'
)
def predict(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's folder, or an artifact's key, or its beginning.")
    ],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="An image, a pair, or a video file.")
    ],
    prompt: Annotated[str, typer.Option(help='The prefix, as trained on: "answer en is it red?".')],
    budget: Annotated[int, typer.Option(help="Soft tokens per image or frame.")],
    max_tokens: Annotated[int, typer.Option(help="Longest answer [tokens].")] = 64,
    beams: Annotated[int, typer.Option(help="Hypotheses of beam search; 1 is greedy.")] = 1,
    temperature: Annotated[float, typer.Option(help="Draws the answer; 0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Draws only from so much probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Of the draws.")] = 0,
    frames: Annotated[int | None, typer.Option(help="Frames of a video; else 16.")] = None,
    stride: Annotated[
        int | None, typer.Option(help="Their distance at 25 frames a second; else 30.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Prepare pixels as records of this source are: nlvr, msvd_qa, ..."),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer file, where the checkpoint has none.")
    ] = None,
    draw: Annotated[
        str | None, typer.Option(help="PNG to write: the image with the answer's boxes and masks.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Answer, token ids, budget, bucket and timings.")
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Answers a prompt about an image, an image pair or a video, at any budget."""
    import json

    from flows.commands import predict as prediction

    decoding = {"beams": beams, "temperature": temperature, "top_p": top_p, "seed": seed}
    found = prediction.predict(
        checkpoint,
        images,
        prompt,
        budget=budget,
        max_tokens=max_tokens,
        decoding=decoding,
        store=store,
        tokenizer=tokenizer,
        source=source,
        frames=frames,
        stride=stride,
    )
    if draw:
        from flows.commands.draw import draw_answer

        draw_answer(images, found["answer"], prediction.find_checkpoint(checkpoint, store), draw)
    typer.echo(json.dumps(found, ensure_ascii=False) if as_json else found["answer"])


@model_app.command(
    epilog="Example: parcel convert pt_3b_224.bf16.npz pali3b --tokenizer gemma_tokenizer.model"
)
def convert(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SRC] DST",
            help="SRC: big_vision .npz, .safetensors, a folder of them, or a checkpoint of ours, "
            "which goes to DST.safetensors, DST.npz or a Hugging Face folder.",
        ),
    ],
    check: Annotated[
        Path | None,
        typer.Option(help="Reference inputs and outputs (.npz) to run the result against."),
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="SentencePiece file to put into our checkpoint.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Hugging Face config.json, where none lies beside SRC.")
    ] = None,
    siglip: Annotated[
        Path | None, typer.Option(help="Stage 0 instead of SRC: SigLIP's .npz, with --gemma.")
    ] = None,
    gemma: Annotated[
        Path | None, typer.Option(help="Stage 0 instead of SRC: Gemma 2's Orbax folder.")
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Of an export: float32 or bfloat16; else as it was imported.")
    ] = "",
    seed: Annotated[int, typer.Option(help="Of the token rows that a Stage 0 adds.")] = 0,
) -> None:
    """Converts checkpoints: big_vision or Hugging Face to ours, ours to either."""
    from flows.study.load import ConfigError
    from model.checkpoint.convert import Request
    from model.checkpoint.convert import convert as lines_of
    from model.checkpoint.target import RequestError

    try:
        request = Request(
            paths=tuple(paths), siglip=siglip, gemma=gemma, tokenizer=tokenizer,
            config=config, dtype=dtype, seed=seed, check=check,
        )  # fmt: skip
        for line in lines_of(request):
            typer.echo(line)
        if request.check is not None:
            from model.decode.reference_check import check_file

            for line in check_file(request.paths[-1], request.check):
                typer.echo(line)
    except RequestError as error:
        raise ConfigError(str(error)) from None


@model_app.command(
    epilog="Example: parcel spectral parcel-ckpt chart.png --compare m3-ckpt --out spectra"
)
def spectral(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's folder, or an artifact's key, or its beginning.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers; made if absent.")],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE...]", help="Images, or one video.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another checkpoint; may be given repeatedly.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Soft tokens per image; else 64 for pooled tokens, all for queries."),
    ] = None,
    data: Annotated[
        str | None, typer.Option(metavar="DATASET", help="Images of a prepared dataset, too.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most images taken from --data.")] = 64,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draws the spatial spectra of features, pooled tokens and queries: the paper's figures."""
    from flows.commands.spectral import spectra

    written = spectra(
        [checkpoint, *(compare or [])],
        images or [],
        out=out,
        budget=budget,
        data=data,
        limit=limit,
        store=store,
    )
    for path in written:
        typer.echo(path)
