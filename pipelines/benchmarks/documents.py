"""Benchmarks of questions about charts, documents, scene text, books, diagrams and school tasks.

Source: big_vision's transfer configs; rates and sizes from the PaliGemma and PaliGemma 2 reports
(app. J and B; table 14); sizes of evaluation splits from the sets' own papers and files.
"""

from pipelines.benchmarks.prompts import CHOICES
from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name

_CHARTQA = Recipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=30, label_smoothing=0.2, dropout=0.1)
_AI2D = Recipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=10)
_SCIENCE_QA = Recipe(batch_size=128, lr_pg1=1e-5, lr_pg2=6e-6, epochs=20, freeze_vision=True)
_OCRVQA = Recipe(batch_size=128, lr_pg1=3e-6, lr_pg2=1e-6, epochs=3)
_DOCVQA = Recipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=10)


def _three_epochs(lr_pg2: float, label_smoothing: float) -> dict[int, Recipe]:
    return {
        side: Recipe(
            batch_size=batch_size,
            lr_pg1=1e-5,
            lr_pg2=lr_pg2,
            decay=True,
            epochs=3,
            label_smoothing=label_smoothing,
        )
        for side, batch_size in ((224, 256), (448, 128))
    }


BENCHMARKS = by_name(
    Benchmark(
        name="chartqa",
        config="chartqa",
        prompt="{text}",
        text_len=48,
        antialias="always",
        metric="relaxed_accuracy",
        tune_split="train",
        final_split="train+val",
        eval_split="test",
        rows=(
            Row(titles=("ChartQA (human)",), split="test_human", suite="main", size=1_250),
            Row(titles=("ChartQA (aug)",), split="test_augmented", suite="main", size=1_250),
        ),
        num_train=30_219,
        recipes={224: _CHARTQA, 448: _CHARTQA},
    ),
    Benchmark(
        name="docvqa",
        config="docvqa",
        prompt="{text}",
        text_len=32,
        antialias="always",
        metric="anls_big_vision",
        sampling="choice",
        tune_split="train[:-5%]",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("DocVQA (val)",), split="val", suite="main", size=5_349),),
        num_train=44_812,
        recipes={224: _DOCVQA, 448: _DOCVQA},
    ),
    Benchmark(
        name="infovqa",
        config="infovqa",
        prompt="answer en {text}",
        text_len=48,
        antialias="always",
        metric="anls_big_vision",
        lower=True,
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("InfoVQA (val)",), split="val", suite="main", size=2_801),),
        num_train=26_747,
        recipes=_three_epochs(3e-6, 0.4),
    ),
    Benchmark(
        name="stvqa",
        config="stvqa",
        prompt="answer en {text}",
        text_len=48,
        antialias="always",
        metric="anls_big_vision",
        lower=True,
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("ST-VQA (val)", "ST-VQA"), split="val", suite="main", size=2_628),),
        num_train=26_074,
        recipes=_three_epochs(6e-6, 0.1),
    ),
    Benchmark(
        name="textvqa",
        config="textvqa",
        prompt="answer en {text}",
        text_len=32,
        antialias="always",
        metric="vqav2",
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("TextVQA (val)", "TextVQA"), split="val", suite="main", size=5_000),),
        num_train=39_602,
        recipes={
            224: Recipe(lr_pg1=3e-6, lr_pg2=3e-6, epochs=5),
            448: Recipe(lr_pg1=3e-6, lr_pg2=3e-6, decay=True, epochs=10),
        },
    ),
    Benchmark(
        name="ocrvqa",
        config="ocrvqa",
        prompt="answer en {text}",
        text_len=32,
        antialias="always",
        metric="vqa_lower",
        tune_split="train+val[20000:]",
        final_split="train+val",
        eval_split="test",
        rows=(Row(titles=("OCR-VQA",), split="test", suite="main"),),
        num_train=901_717,
        recipes={224: _OCRVQA, 448: _OCRVQA},
    ),
    Benchmark(
        name="ai2d",
        config="ai2d",
        prompt=CHOICES,
        text_len=128,
        antialias="train",
        metric="exact_match",
        tune_split="train[:-1024]",
        final_split="train",
        eval_split="test",
        rows=(Row(titles=("AI2D",), split="test", size=3_088),),
        num_train=12_413,
        recipes={224: _AI2D, 448: _AI2D},
    ),
    Benchmark(
        name="science_qa",
        config="science_qa",
        prompt="Question: {text}\nContext: {context}\nOptions: {choices}\nAnswer:",
        text_len=512,
        metric="science_qa",
        tune_split="train",
        final_split="train+val",
        eval_split="test",
        rows=(Row(titles=("ScienceQA",), split="test", size=2_017),),
        num_train=8_315,
        recipes={224: _SCIENCE_QA, 448: _SCIENCE_QA},
    ),
)
