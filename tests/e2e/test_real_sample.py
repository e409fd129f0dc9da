"""Published files, in the layouts their authors publish, made into datasets by the command."""

from pathlib import Path

import pytest

from infra.store.store import Store
from pipelines.records.dataset import Dataset
from tests.e2e.conftest import parcel

SHARED = Path(__file__).parents[2].parent / "shared" / "data"
CONFIG = Path(__file__).parents[2] / "configs" / "real_sample.yaml"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.deep,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no real sample data beside the project"),
]


def test_every_real_input_is_a_record_or_a_reject_with_its_reason(tmp_path: Path):
    store = tmp_path / "store"
    done = parcel(store, "prepare", str(CONFIG), f"data_root={SHARED}", timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = {
        a.manifest.name: Dataset(a.path)
        for a in Store(store).artifacts()
        if a.manifest.kind == "dataset"
    }
    for name, dataset in found.items():
        rejects = list(dataset.rejects())
        ids = [record.id for record in dataset.records()] + [reject.id for reject in rejects]
        assert len(ids) == len(set(ids)) == dataset.info.num_inputs, name
        assert all(reject.reason for reject in rejects), name
    reasons = {r.source: r.reason for r in found["prepare mixture/videos"].rejects()}
    assert any("result.webm" in source for source in reasons), "the 0-byte video"
    assert any("crunching.mp3" in source for source in reasons), "the audio-only file"
    assert found["prepare chartqa/eval"].info.num_records == 20
    assert found["prepare mixture/nlvr"].info.num_records == 120
