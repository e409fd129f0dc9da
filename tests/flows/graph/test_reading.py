"""The line of `--explain` on what trainings ask of a bucket."""

import re
import shutil
from pathlib import Path

from flows.graph.reading import describe_reads
from flows.steps.kind import Step
from flows.steps.kinds.checkpoint import FitSpec
from flows.steps.labels import Labels, labels_of_step_name
from flows.study.load import load
from infra.store.manifest import Recipe
from infra.store.store import Artifact, Attempt, Store
from model.train.config import TrainConfig
from tests.model.tiny_data import color_record, write_dataset


def test_the_training_with_the_most_requests_is_told(tmp_path: Path):
    store, model = Store(tmp_path / "store"), load().model_of("vanilla")

    def step(name: str, data: Step, **train) -> Step:
        spec = FitSpec(model=model, train=TrainConfig(**train))
        return Step(
            kind="checkpoint",
            labels=labels_of_step_name(name),
            config=spec,
            inputs={"data/0": data},
        )

    there: dict[Step, Artifact | None] = {}
    data = [
        Step(kind="dataset", labels=Labels(action="prepare", subject=name))
        for name in ("web", "few", "none")
    ]
    for one, num in zip(data[:2], (1024, 512), strict=True):
        folder = write_dataset(tmp_path / one.name, {"c": [color_record(i) for i in range(num)]})
        attempt = Attempt(store, Recipe(kind="dataset", name=one.name, config=num))
        shutil.copytree(folder, attempt.path, dirs_exist_ok=True)
        there[one] = attempt.commit({})
    trainings = [step("stage1", data[0]), step("transfer", data[1])]
    told = describe_reads([*data, *trainings, step("late", data[2])], there)
    assert re.match(
        r"reading 7,300 records/s .* 29 requests/s .*MB .*\(stage1\); .* 1 training", told
    )
    wrong = step("x", data[0], mixture=(("d", 1.0),))
    assert describe_reads([wrong], there).startswith("reading: known once the data")
