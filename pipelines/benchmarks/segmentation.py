"""The benchmark of expressions that refer to one object.

Source: big_vision `configs/proj/paligemma/transfers/refcoco_seg.py`; PaliGemma 2, table 14. Sizes
are sentences of the published splits (github.com/lichengunc/refer), and images of "train".
"""

from pipelines.benchmarks.row import Benchmark, Recipe, Row, by_name

_SENTENCES = {
    ("RefCOCO (val)", "refcoco_val"): 10_834,
    ("RefCOCO (testA)", "refcoco_testA"): 5_657,
    ("RefCOCO (testB)", "refcoco_testB"): 5_095,
    ("RefCOCO+ (val)", "refcocoplus_val"): 10_758,
    ("RefCOCO+ (testA)", "refcocoplus_testA"): 5_726,
    ("RefCOCO+ (testB)", "refcocoplus_testB"): 4_889,
    ("RefCOCO-g (val)", "refcocog_val"): 4_896,
    ("RefCOCO-g (test)", "refcocog_test"): 9_602,
}

BENCHMARKS = by_name(
    Benchmark(
        name="refcoco",
        config="refcoco_seg",
        prompt="{text}",
        text_len=48,
        metric="miou",
        final_split="train",
        eval_split="val",
        rows=tuple(
            Row(titles=(title,), split=split, suite="main", size=size)
            for (title, split), size in _SENTENCES.items()
        ),
        num_train=24_407,
        recipes={
            224: Recipe(lr_pg1=3e-5, lr_pg2=1e-5, epochs=100, label_smoothing=0.3, dropout=0.1),
            448: Recipe(lr_pg1=1e-5, lr_pg2=1e-5, epochs=100, label_smoothing=0.3),
        },
    ),
)
