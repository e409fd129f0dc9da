"""Benchmarks of captions for photographs, figures and screens.

Source: big_vision's transfer configs; rates and sizes from the PaliGemma and PaliGemma 2 reports
(app. J and B; table 14); sizes of evaluation splits from the sets' own papers and files.
"""

from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name, zero_shot

_COCO = Recipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=5)

COCOCAP = Benchmark(
    name="cococap",
    config="cococap",
    prompt="caption en",
    text_len=32,
    metric="cider",
    beams=2,
    tune_split="train[:98%]+restval",
    final_split="train+restval",
    eval_split="val",
    rows=(Row(titles=("COCO-Captions",), split="val", size=5_000),),
    num_train=113_287,
    recipes={224: _COCO, 448: _COCO},
)

_COCO35L = Recipe(lr_pg1=1e-5, lr_pg2=3e-6, decay=True, epochs=2_832_175 / (113_287 * 35))

COCO35L = Benchmark(
    name="coco35l",
    config="coco35l",
    prompt="caption {lang}",
    text_len=32,
    metric="cider",
    final_split="train",
    eval_split="dev_en",
    rows=(Row(titles=("COCO-35L (en)", "COCO-35L"), split="dev_en", size=5_000),),
    num_train=113_287 * 35,
    recipes={224: _COCO35L, 448: _COCO35L},
)

_TEXTCAPS = Recipe(lr_pg1=1e-5, lr_pg2=1e-6, decay=True, epochs=5)
_SCICAP = Recipe(lr_pg1=3e-5, lr_pg2=3e-5, epochs=80, label_smoothing=0.1, dropout=0.1)
_SCREEN2WORDS = Recipe(lr_pg1=1e-5, lr_pg2=6e-6, epochs=10, label_smoothing=0.2, dropout=0.3)
_WIDGETCAP = Recipe(
    batch_size=64, lr_pg1=3e-6, lr_pg2=3e-6, decay=True, epochs=4, label_smoothing=0.1, dropout=0.1
)

BENCHMARKS = by_name(
    COCOCAP,
    zero_shot(
        COCOCAP,
        name="nocaps",
        eval_split="val",
        rows=(Row(titles=("NoCaps",), split="val", size=4_500),),
    ),
    COCO35L,
    zero_shot(
        COCO35L,
        name="xm3600",
        eval_split="en",
        rows=(Row(titles=("XM3600 (en)", "XM3600"), split="en", size=3_600),),
    ),
    Benchmark(
        name="textcaps",
        config="textcaps",
        prompt="caption en",
        text_len=32,
        metric="cider",
        beams=3,
        lower=True,
        tune_split="train[:98%]",
        final_split="train",
        eval_split="val",
        rows=(Row(titles=("TextCaps",), split="val", suite="main", size=3_166),),
        num_train=21_953,
        recipes={224: _TEXTCAPS, 448: _TEXTCAPS},
    ),
    Benchmark(
        name="scicap",
        config="scicap",
        prompt="caption en",
        text_len=96,
        metric="cider",
        tune_split="train",
        final_split="train+val",
        eval_split="test",
        rows=(Row(titles=("SciCap",), split="test", suite="main", size=13_355),),
        num_train=120_188,
        recipes={224: _SCICAP, 448: _SCICAP},
    ),
    Benchmark(
        name="screen2words",
        config="screen2words",
        prompt="caption en",
        text_len=24,
        metric="cider",
        tune_split="train",
        final_split="train+dev",
        eval_split="test",
        rows=(Row(titles=("Screen2Words",), split="test", size=4_310),),
        num_train=18_107,
        recipes={224: _SCREEN2WORDS, 448: _SCREEN2WORDS},
    ),
    Benchmark(
        name="widgetcap",
        config="widgetcap",
        prompt="caption en",
        text_len=32,
        antialias="always",
        metric="cider",
        tune_split="train",
        final_split="train+dev",
        eval_split="test",
        rows=(Row(titles=("WidgetCap",), split="test", suite="main"),),
        num_train=44_704,
        recipes={224: _WIDGETCAP, 448: _WIDGETCAP},
    ),
)
