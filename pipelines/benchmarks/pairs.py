"""Benchmarks of sentences about two images.

Source: big_vision `configs/proj/paligemma/transfers/nlvr2.py`; PaliGemma 2, table 14.
"""

from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name, zero_shot

NLVR = Benchmark(
    name="nlvr",
    config="nlvr2",
    prompt="answer en {text}",
    text_len=64,
    metric="nlvr",
    tune_split="train",
    final_split="train+dev",
    eval_split="test",
    rows=(Row(titles=("NLVR2",), split="test", suite="main", size=6_967),),
    num_train=93_355,
    recipes={
        224: Recipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=3),
        448: Recipe(lr_pg1=3e-6, lr_pg2=6e-6, decay=True, epochs=10),
    },
)

MARVL_SIZES = {"id": 1_128, "sw": 1_108, "ta": 1_242, "tr": 1_180, "zh": 1_012}
"""Number of sentences per language."""

BENCHMARKS = by_name(
    NLVR,
    zero_shot(
        NLVR,
        name="marvl",
        eval_split="+".join(MARVL_SIZES),
        rows=(
            Row(
                titles=("MaRVL",),
                split="id",
                averaged=("sw", "ta", "tr", "zh"),
                suite="main",
                size=sum(MARVL_SIZES.values()),
                resolutions=(),
            ),
        ),
    ),
)
