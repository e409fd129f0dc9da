"""`parcel model`: commands on models, checkpoints and answers, beside any study."""

import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from infra.errors import ConfigError
from parcel.cli.options import DEFAULT_STORE, StoreOption

model_app = typer.Typer(
    no_args_is_help=True,
    help="Models, checkpoints and answers: convert, check, flops, spectral, predict, score.",
)


@model_app.command(
    epilog="Example: parcel model convert pt_3b_224.bf16.npz pali3b --tokenizer gemma.model",
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
    from model.checkpoint.convert import ConversionRequest
    from model.checkpoint.convert import convert_checkpoint as lines_of
    from model.checkpoint.target import RequestError
    from pipelines.fetch.fetch import check_fetched

    try:
        # The request checks itself when built, before any weight is read.
        request = ConversionRequest(
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


@model_app.command("check-connector", hidden=True)
@model_app.command("check", epilog="Example: parcel model check connectors.py:Ripple")
def check_connector(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Connector: your own as file.py:Class, module:Class or an entry point; or parcel, "
            "mqt, ...",
        ),
    ],
    config: Annotated[
        str | None,
        typer.Option(
            metavar="CONFIG", help="A study's YAML, whose sizes are checked; default: the demo's."
        ),
    ] = None,
    vision: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Another tower, by family or published size: siglip2, clip-l-336, ...",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Another decoder, likewise: gemma3-4b, vicuna-7b, ..."),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.PY:CLASS",
            help="Also compare it with a torch module on equal weights, at each budget; "
            "PARCEL_TORCH_PYTHON names a Python that has torch and transformers.",
        ),
    ] = None,
) -> None:
    """Checks a connector's promises on random features: a line each, exit code 1 if one fails."""
    from flows.config.model_families import with_pair
    from flows.config.references import connector_reference
    from flows.study.load import load
    from model.checkpoint.torch_connector import compare, torch_class
    from model.connector.contract import check_promises

    try:
        # First, so that a Python without torch shows before the promises are computed.
        author = None if torch is None else torch_class(torch)
        model = load(config).model_of(connector_reference("NAME", name))
        model = with_pair(model, vision, text)
        compared = [] if author is None else [compare(model, author)]
    except ValueError as error:
        raise ConfigError(str(error)) from None
    broken = False
    # All checks are run: who writes a connector sees every broken promise at once.
    for finding in itertools.chain(compared, check_promises(model)):
        typer.echo(f"{finding.name:10} {'ok    ' if finding.holds else 'BROKEN'} {finding.detail}")
        broken |= not finding.holds
    raise typer.Exit(1 if broken else 0)


@model_app.command(epilog="Example: parcel model flops --budget 64 --parts")
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
    from parcel.cli.flops_models import flops_models as models_of

    by_backbone = models_of(config, image_px, connector or ())
    if as_json:
        typer.echo(json_of(by_backbone, budget), nl=False)
        return
    tables = [
        (f"{backbone}: " if backbone else "") + flops_text(models, budget, parts=parts)
        for backbone, models in by_backbone.items()
    ]
    typer.echo("\n".join(tables), nl=False)


@model_app.command(
    epilog="Example: parcel model spectral parcel-ckpt chart.png --compare m3-ckpt --out spectra",
)
def spectral(
    checkpoint: Annotated[
        str, typer.Argument(help="A checkpoint's folder, or an artifact's key or its beginning.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for figures and numbers; created if missing.")],
    images: Annotated[
        list[str] | None, typer.Argument(metavar="[IMAGE...]", help="Images, or one video.")
    ] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another checkpoint; may be given repeatedly.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(help="Soft tokens per image; default: 64 for pooled tokens, all for queries."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATASET", help="Prepared dataset to take images from, too."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most images taken from --data.")] = 64,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            help="The paper's setting: the picture of every question that people ask in ChartQA's "
            "test split, as a study of the store prepared it.",
        ),
    ] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Draws the spatial spectra of features, pooled tokens and queries: the paper's figures."""
    from flows.lookup.spectral import draw_spectra

    if paper and (images or data is not None):
        raise ConfigError(
            "--paper must be without IMAGE... and --data: its pictures are ChartQA's."
        )
    # All checkpoints see the same images, so their spectra can be compared.
    written = draw_spectra(
        [checkpoint, *(compare or [])],
        images or [],
        out=out,
        budget=budget,
        data=data,
        limit=None if paper else limit,
        paper=paper,
        store=store,
    )
    for path in written:
        typer.echo(path)


@model_app.command(
    epilog="Example: parcel model predict demo/chartqa/parcel/64/56703 chart.png "
    '--prompt "How many?" --budget 64',
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
    from flows.lookup import predict as prediction

    decoding = {"beams": beams, "temperature": temperature, "top_p": top_p, "seed": seed}
    answer = prediction.predict_answer(
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


@model_app.command(epilog="Example: parcel model score relaxed_accuracy predictions.jsonl")
def score(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="Metric: vqa, cider, ...; an unknown name lists all. Or your own: "
            "my_metric.py:function, module:function.",
        ),
    ],
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.jsonl",
            help='Lines {"id", "prediction", "answers": [...]}, and the fields that the metric '
            "breaks scores down by: lang, kind, answer_type, question_type, issimple; for miou, "
            "masks and box.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print aggregate, parts and items as one JSON object.")
    ] = False,
    mask_codec: Annotated[
        Path | None,
        typer.Option(help="A mask codec's .npz, or a checkpoint with one; for miou only."),
    ] = None,
) -> None:
    """Scores predictions: one line per item, then the aggregate and its parts (0-100).

    Where the aggregate is a mean over parts, such as languages, every line counts: lines without
    the field are a part of their own, (none).
    """
    from flows.config.references import metric_reference
    from model.eval.score_file import as_json as json_of
    from model.eval.score_file import as_text, score_file

    try:
        metric = metric_reference("METRIC", metric)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    scored = score_file(metric, file, mask_codec)
    typer.echo(json_of(scored) if as_json else as_text(scored), nl=False)
