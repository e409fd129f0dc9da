"""The cost of a prompt, per benchmark, method and budget, by the paper's formulas."""

from flows.config.benchmark import benchmark_of, trained_on
from flows.report.cells import Cost
from flows.study.view import StudyView
from model.analysis import flops
from pipelines.sources.pairs import marvl, nlvr


def costs_of(view: StudyView) -> tuple[Cost, ...]:
    """Returns the cost of one prefill for every cell of the results.

    The prompt is as long as the benchmark's evaluation allows, and a video has all its frames.
    Benchmarks with the same number of images and the same text length share one `Cost`.
    """
    # A prompt's cost depends on its size alone, and many benchmarks share one:
    #
    #   (1 image, 64 tokens)      chartqa:test_human, docvqa:val, …
    #   (16 images, 64 tokens)    msvd_qa, …
    rows_by_size: dict[tuple[int, int], list[str]] = {}
    for name, row in view.rows.items():
        transfer = view.transfers[row.benchmark]
        text_len = transfer.eval_text_len or transfer.train.text_len
        rows_by_size.setdefault((num_images_of(view, row.benchmark), text_len), []).append(name)
    costs = []
    for method in view.methods:
        model = view.model_of(method, transfer=True)
        for (num_images, text_len), rows in rows_by_size.items():
            prompt = flops.Modality(name="", num_images=num_images, text_tokens=text_len)
            for budget in view.budgets_of(method):
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


def num_images_of(view: StudyView, name: str) -> int:
    """Returns how many images an example of a benchmark has.

    Of a benchmark that is only trained on, for another that is scored, it is that other's number.
    """
    if name not in view.transfers:
        name = next(scored for scored in view.transfers if trained_on(scored) == name)
    transfer = view.transfers[name]
    if name in (nlvr.NLVR.name, marvl.MARVL.name):
        return 2
    # A pair has two images, a video its frames; without frames `min` is 0, and an image is one.
    frames = transfer.num_frames or benchmark_of(name, transfer).num_frames
    if frames:
        frames = transfer.num_frames or (transfer.prepare or view.prepare).num_frames or frames
    return min(frames, transfer.train.max_frames) or 1
