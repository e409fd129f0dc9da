"""Benchmarks of questions about photographs.

Source: big_vision's transfer configs; rates and sizes from the PaliGemma and PaliGemma 2 reports
(app. J and B; table 14); sizes of evaluation splits from the sets' own papers and files.
"""

from pipelines.benchmarks.prompts import CHOICES
from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name, zero_shot


def _small(lr_pg2: float, epochs: float) -> dict[int, Recipe]:
    recipe = Recipe(batch_size=128, lr_pg1=5e-6, lr_pg2=lr_pg2, epochs=epochs)
    return {224: recipe, 448: recipe}


VQAV2 = Benchmark(
    name="vqav2",
    config="vqav2",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="vqav2",
    tune_split="train+val[:-10240]",
    final_split="train+val",
    eval_split="val[-10240:]",
    rows=(Row(titles=("VQAv2 (minival)", "VQAv2 (val)"), split="val[-10240:]", size=10_240),),
    num_train=658_111,
    recipes={
        224: Recipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=10),
        448: Recipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=10),
    },
)

GQA = Benchmark(
    name="gqa",
    config="gqa",
    prompt="answer en {text}",
    text_len=32,
    metric="vqa",
    tune_split="train_balanced",
    final_split="train_balanced+val_balanced",
    eval_split="testdev_balanced",
    rows=(Row(titles=("GQA",), split="testdev_balanced", suite="main", size=12_578),),
    num_train=1_075_062,
    recipes={
        224: Recipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=1),
        448: Recipe(lr_pg1=1e-5, lr_pg2=3e-6, epochs=1, freeze_vision=True),
    },
)

XGQA_LANGUAGES = ("bn", "de", "id", "ko", "pt", "ru", "zh")
"""The seven languages of the average; English, the eighth, does not count."""

TALLYQA = Benchmark(
    name="tallyqa",
    config="tallyqa",
    prompt="answer en {text}",
    text_len=32,
    antialias="always",
    metric="tallyqa",
    final_split="train",
    eval_split="test",
    rows=(
        Row(titles=("TallyQA (simple)",), split="test_simple", size=22_991, resolutions=(224,)),
        Row(titles=("TallyQA (complex)",), split="test_complex", size=15_598, resolutions=(224,)),
    ),
    num_train=249_318,
    recipes={
        224: Recipe(lr_pg1=1e-5, lr_pg2=6e-6, epochs=2),
        448: Recipe(lr_pg1=1e-5, lr_pg2=6e-6, decay=True, epochs=2),
    },
)

_VIZWIZ = Recipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=10)

BENCHMARKS = by_name(
    VQAV2,
    zero_shot(
        VQAV2,
        name="pope",
        config="pope",
        text_len=48,
        antialias="never",
        metric="pope",
        eval_split="random+popular+adversarial",
        rows=(
            Row(
                titles=("POPE",),
                split="random+popular+adversarial",
                suite="other",
                size=9_000,
                resolutions=(),
            ),
        ),
    ),
    Benchmark(
        name="okvqa",
        config="okvqa",
        prompt="answer en {text}",
        text_len=32,
        antialias="always",
        metric="vqa",
        tune_split="train[:-10%]",
        final_split="train",
        eval_split="val",
        rows=(Row(titles=("OKVQA",), split="val", size=5_046),),
        num_train=9_009,
        recipes=_small(3e-6, 10),
    ),
    Benchmark(
        name="aokvqa_da",
        config="aokvqa_da",
        prompt="answer en {text}",
        text_len=32,
        antialias="always",
        metric="vqa",
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("AOKVQA-DA (val)", "AOKVQA-DA"), split="val", size=1_145),),
        num_train=18_201,
        recipes=_small(3e-6, 10),
    ),
    Benchmark(
        name="aokvqa_mc",
        config="aokvqa_mc",
        prompt=CHOICES,
        text_len=128,
        antialias="always",
        metric="exact_match",
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("AOKVQA-MC (val)", "AOKVQA-MC"), split="val", size=1_145),),
        num_train=18_201,
        recipes=_small(3e-6, 15),
    ),
    GQA,
    zero_shot(
        GQA,
        name="xgqa",
        eval_split="+".join(XGQA_LANGUAGES),
        rows=(
            Row(
                titles=("xGQA",),
                split=XGQA_LANGUAGES[0],
                averaged=XGQA_LANGUAGES[1:],
                suite="main",
                size=len(XGQA_LANGUAGES) * 12_578,
                resolutions=(),
            ),
        ),
    ),
    Benchmark(
        name="vizwizvqa",
        config="vizwizvqa",
        prompt="answer en {text}",
        text_len=48,
        antialias="train",
        metric="vqa",
        tune_split="train",
        final_split="train+val",
        eval_split="val",
        rows=(Row(titles=("VizWizVQA (val)", "VizWizVQA"), split="val", size=4_319),),
        num_train=24_842,
        recipes={224: _VIZWIZ, 448: _VIZWIZ},
    ),
    TALLYQA,
    zero_shot(
        TALLYQA,
        name="countbenchqa",
        eval_split="huggingface",
        rows=(Row(titles=("CountBenchQA",), split="huggingface", size=490, resolutions=(224,)),),
    ),
)
