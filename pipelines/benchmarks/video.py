"""Benchmarks of captions of clips and of questions about clips, all at 224 px.

Source: big_vision `configs/proj/paligemma/transfers/{activitynet,msrvtt,msvd,vatex}_{cap,qa}.py`;
PaliGemma 2, table 14. Training sizes are PaliGemma's, made after some videos went offline; sizes of
evaluation splits are the authors' published ones.
"""

from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name


def _video(
    name: str,
    title: str,
    recipe: Recipe,
    *,
    text_len: int,
    stride: int,
    num_frames: int = 16,
    num_train: int,
    size: int,
    split: str = "test",
    suite: str = "main",
) -> Benchmark:
    caption = name.endswith("_cap")
    row = Row(
        titles=(title,),
        split=split,
        suite=suite,  # type: ignore[arg-type]
        size=size,
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


def _recipe(
    lr_pg1: float, lr_pg2: float, epochs: int, *, decay: bool = False, freeze_vision: bool = False
) -> Recipe:
    return Recipe(
        batch_size=128,
        lr_pg1=lr_pg1,
        lr_pg2=lr_pg2,
        decay=decay,
        epochs=epochs,
        freeze_vision=freeze_vision,
    )


BENCHMARKS = by_name(
    _video(
        "activitynet_cap",
        "ActivityNet-CAP",
        _recipe(1e-5, 3e-6, 1, decay=True, freeze_vision=True),
        text_len=64,
        stride=30,
        num_train=44_775,
        size=17_031,
    ),
    _video(
        "activitynet_qa",
        "ActivityNet-QA",
        _recipe(1e-5, 6e-6, 1, decay=True),
        text_len=64,
        stride=70,
        num_train=43_130,
        size=8_000,
    ),
    _video(
        "msrvtt_cap",
        "MSRVTT-Cap",
        _recipe(1e-5, 1e-5, 20, freeze_vision=True),
        text_len=32,
        stride=9,
        num_train=4_965,
        size=2_990,
    ),
    _video(
        "msrvtt_qa",
        "MSRVTT-QA",
        _recipe(1e-5, 6e-6, 1, freeze_vision=True),
        text_len=64,
        stride=9,
        num_train=121_646,
        size=72_821,
    ),
    _video(
        "msvd_qa",
        "MSVD-QA",
        _recipe(3e-6, 3e-6, 1, decay=True),
        text_len=64,
        stride=26,
        num_frames=8,
        num_train=29_749,
        size=13_157,
    ),
    _video(
        "vatex_cap",
        "VATEX",
        _recipe(3e-6, 3e-6, 10, decay=True),
        text_len=64,
        stride=7,
        num_train=24_850,
        size=3_000,
        split="val",
        suite="other",
    ),
)
