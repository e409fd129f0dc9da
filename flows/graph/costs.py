"""The cost of a prompt, per benchmark, method and budget, by the paper's formulas."""

from flows.config.benchmark import benchmark_of, trained_on
from flows.report.cells import Cost
from flows.study.view import StudyView
from model.analysis import flops
from pipelines.sources.pairs import marvl, nlvr


def costs_of(config: StudyView) -> tuple[Cost, ...]:
    """Returns the cost of one prefill for every cell of the results.

    The prompt is as long as the benchmark's evaluation allows, and a video has all its frames.
    Benchmarks with the same number of images and the same text length share one `Cost`.
    """
    # A prompt's cost depends on its size alone, and many benchmarks share one:
    #
    #   (1 image, 64 tokens)      chartqa:test_human, docvqa:val, …
    #   (16 images, 64 tokens)    msvd_qa, …
    rows_by_size: dict[tuple[int, int], list[str]] = {}
    for name, row in config.rows.items():
        transfer = config.transfers[row.benchmark]
        text_len = transfer.eval_text_len or transfer.train.text_len
        rows_by_size.setdefault((num_images_of(config, row.benchmark), text_len), []).append(name)
    costs = []
    for method in config.methods:
        model = config.model_of(method, transfer=True)
        for (num_images, text_len), rows in rows_by_size.items():
            prompt = flops.Modality(name="", num_images=num_images, text_tokens=text_len)
            for budget in config.budgets_of(method):
                cost = flops.efficiency_cell(model, budget, prompt)
                costs.append(
                    Cost(
                        benchmarks=tuple(rows),
                        method=method,
                        budget=budget,
                        num_images=num_images,
                        tflops=cost.tflops,
                        kv_mb=cost.kv_mb,
                    )
                )
    return tuple(costs)


def num_images_of(config: StudyView, name: str) -> int:
    """Returns how many images an example of a benchmark has.

    Of a benchmark that is only trained on, for another that is scored, it is that other's number.
    """
    if name not in config.transfers:
        name = next(scored for scored in config.transfers if trained_on(scored) == name)
    transfer = config.transfers[name]
    if name in (nlvr.NLVR.name, marvl.MARVL.name):
        return 2
    # A pair has two images, a video its frames; without frames `min` is 0, and an image is one.
    frames = transfer.num_frames or benchmark_of(name, transfer).num_frames
    if frames:
        frames = transfer.num_frames or (transfer.prepare or config.prepare).num_frames or frames
    return min(frames, transfer.train.max_frames) or 1
