"""`parcel score`: scores any predictions by any metric. Heavy imports are inside it."""

from pathlib import Path
from typing import Annotated

import typer

score_app = typer.Typer()


@score_app.command(epilog="Example: parcel score relaxed_accuracy predictions.jsonl")
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
    from flows.study.score import score_predictions as score_by
    from model.eval.score_file import as_json as json_of
    from model.eval.score_file import as_text

    scored = score_by(metric, file, mask_codec)
    typer.echo(json_of(scored) if as_json else as_text(scored), nl=False)
