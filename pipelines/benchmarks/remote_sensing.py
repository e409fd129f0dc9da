"""Benchmarks of questions about satellite and aerial images, without those on counts and areas.

Source: big_vision `configs/proj/paligemma/transfers/rsvqa_{lr,hr}.py`; PaliGemma 2, table 14.
"""

from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name

_LR = Recipe(lr_pg1=3e-6, lr_pg2=3e-6, epochs=3, label_smoothing=0.2)
_HR = Recipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=1)

BENCHMARKS = by_name(
    Benchmark(
        name="rsvqa_lr",
        config="rsvqa_lr",
        prompt="answer en {text}",
        text_len=32,
        antialias="train",
        metric="rsvqa",
        lower=True,
        tune_split="train",
        final_split="train+val",
        eval_split="test",
        rows=(Row(titles=("RSVQA-lr",), split="test", resolutions=(224,)),),
        num_train=47_173,
        recipes={224: _LR, 448: _LR},
    ),
    Benchmark(
        name="rsvqa_hr",
        config="rsvqa_hr",
        prompt="answer en {text}",
        text_len=32,
        antialias="train",
        metric="rsvqa",
        lower=True,
        tune_split="train",
        final_split="train+val",
        eval_split="test",
        rows=(
            Row(titles=("RSVQA-hr (test)", "RSVQA-hr"), split="test"),
            Row(titles=("RSVQA-hr (test2)",), split="test_2"),
        ),
        num_train=432_239,
        recipes={224: _HR, 448: _HR},
    ),
)
