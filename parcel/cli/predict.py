"""`parcel predict`: answers one prompt about an image, a pair or a video."""

from typing import Annotated

import typer

from parcel.cli.options import DEFAULT_STORE, StoreOption

predict_app = typer.Typer()


@predict_app.command(
    epilog='Example: parcel predict demo/chartqa/parcel/64/56703 chart.png --prompt "How many?" '
    "--budget 64"
)
def predict(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CELL|CHECKPOINT",
            help="RUN/BENCHMARK/METHOD/BUDGET/SEED, a checkpoint's key, or its folder.",
        ),
    ],
    images: Annotated[
        list[str], typer.Argument(metavar="IMAGE...", help="An image, a pair, or a video file.")
    ],
    prompt: Annotated[str, typer.Option(help='The prefix, as trained on: "answer en is it red?".')],
    budget: Annotated[int, typer.Option(help="Soft tokens per image or frame.")],
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.")] = 64,
    beams: Annotated[int, typer.Option(help="Hypotheses of beam search; 1 is greedy.")] = 1,
    temperature: Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.")] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(help="Sample only from the likeliest tokens with this total probability."),
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the sampling.")] = 0,
    frames: Annotated[
        int | None, typer.Option(help="Number of frames of a video; default: 16.")
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option(help="Distance between frames, at 25 frames a second; default: 30."),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(help="Prepare pixels as for records of this source: nlvr, msvd_qa, ..."),
    ] = None,
    background: Annotated[
        str, typer.Option(help="Colour that shows through transparent pixels, as prepare's.")
    ] = "#ffffff",
    aspect: Annotated[
        str, typer.Option(help="squash, or pad to a square first, as prepare's.")
    ] = "squash",
    pad_colour: Annotated[
        str, typer.Option(help="Colour of the padding, as prepare's.")
    ] = "#7a7468",
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer file, if the checkpoint has none.")
    ] = None,
    draw: Annotated[
        str | None, typer.Option(help="PNG to write: the image with the answer's boxes and masks.")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print answer, token ids, budget, bucket and timings as JSON."),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Answers a prompt about an image, an image pair or a video, at any budget."""
    # Only now: `--help` must not wait for JAX.
    import json

    from flows.lineage import predict as prediction

    decoding = {"beams": beams, "temperature": temperature, "top_p": top_p, "seed": seed}
    answer = prediction.predict(
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
        background=background,
        aspect=aspect,
        pad_colour=pad_colour,
    )
    # Drawn on the image as it is on disk, and not on the square that the model saw.
    if draw:
        folder = prediction.find_checkpoint(checkpoint, store)
        prediction.draw_answer(images, answer["answer"], folder, draw, aspect=aspect)
    typer.echo(json.dumps(answer, ensure_ascii=False) if as_json else answer["answer"])
