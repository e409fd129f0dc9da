"""Benchmarks of captions of clips and of questions about clips, all at 224 px.

Source: big_vision `configs/proj/paligemma/transfers/{activitynet,msrvtt,msvd,vatex}_{cap,qa}.py`;
PaliGemma 2, table 14. Training sizes are PaliGemma's, made after some videos went offline; sizes of
evaluation splits are the authors' published ones.
"""

from typing import Literal

from pipelines.benchmarks.row import Benchmark, FinetuneRecipe, ResultRow


def video_benchmark(
    name: str,
    title: str,
    recipe: FinetuneRecipe,
    *,
    text_len: int,
    stride: int,
    num_frames: int = 16,
    num_train: int,
    size: int,
    split: str = "test",
    suite: str = "main",
) -> Benchmark:
    """Returns a benchmark with a single row; it is of captions if its name ends in "_cap"."""
    # Captions and questions differ in prompt, metric and in how training draws a target; all else
    # is the same for every benchmark of clips.
    caption = name.endswith("_cap")
    row = ResultRow(
        titles=(title,),
        split=split,
        suite=suite,  # type: ignore[arg-type]
        size=size,
        # The paper's main suite has clips at 224 px only.
        resolutions=(224,) if suite == "main" else (),
    )
    return Benchmark(
        name=name,
        config=name,
        prompt="caption en" if caption else "answer en {text}",
        text_len=text_len,
        metric="cider" if caption else "exact_match",
        sampling="uniform" if caption else "without_replacement",
        tune_split="train",
        final_split="train+val",
        eval_split=split,
        rows=(row,),
        num_train=num_train,
        recipes={224: recipe},
        num_frames=num_frames,
        frame_stride=stride,
    )


def video_recipe(
    lr_pg1: float,
    lr_pg2: float,
    epochs: int,
    *,
    decay: bool = False,
    freeze_vision: Literal[False, "all"] = False,
) -> FinetuneRecipe:
    """Returns the recipe at 224 px."""
    return FinetuneRecipe(
        batch_size=128,
        lr_pg1=lr_pg1,
        lr_pg2=lr_pg2,
        decay=decay,
        epochs=epochs,
        freeze_vision=freeze_vision,
    )
