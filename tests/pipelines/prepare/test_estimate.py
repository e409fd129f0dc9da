"""A sample tells what the whole takes: held against whole datasets that were then prepared."""

import resource
import tarfile
import time
from collections import Counter
from pathlib import Path

import pytest

from pipelines.prepare import estimate as sampling
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.estimate import DatasetEstimate, EstimateInterval, estimate_dataset
from pipelines.prepare.listing import piece_list_name, pixels_key
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import DatasetInfo
from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus

CONFIG = PrepareConfig(image_px=112, num_workers=1, examples_per_task=2, max_reject_rate=0.2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn corpora: 24 archives of 25 pictures, charts, clips, and some broken inputs."""
    out = tmp_path_factory.mktemp("corpus")
    sizes = CorpusConfig(
        num_web=600, num_charts=40, num_scenes=0, num_videos=12, num_defects=9, shard_size=25
    )
    render_corpus(sizes, str(out))
    return out


def sampled(corpus: Path, tmp_path: Path, source: str, config=CONFIG, *, count=60, **more):
    more = {"split": "train", **more}
    return estimate_dataset(
        config, source=source, data_root=str(corpus), scratch=str(tmp_path), count=count, **more
    )


def made(corpus: Path, out: Path, source: str, config=CONFIG, split="train"):
    """A whole dataset, the bytes of its files and the processor time that it took [s]."""
    from pipelines.prepare import graph  # noqa: F401  Beam's import is not what is measured.

    began = _core_s()
    info = prepare_dataset(config, source=source, split=split, data_root=str(corpus), out=str(out))
    took = _core_s() - began
    parts = [path for path in out.iterdir() if path.suffix in (".tfrecord", ".idx")]
    return info, sum(path.stat().st_size for path in parts), took


def _core_s() -> float:
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + ended.ru_utime + ended.ru_stime


def check(found: DatasetEstimate, info: DatasetInfo, num_bytes: int) -> None:
    """Asserts that a sample told what then came."""
    for told, came in ((found.num_records, info.num_records), (found.num_bytes, num_bytes)):
        assert sum(told) / 2 == pytest.approx(came, rel=0.15)


@pytest.mark.slow
def test_a_few_archives_tell_what_all_take(corpus: Path, tmp_path: Path):
    config = PrepareConfig(num_workers=1, max_reject_rate=0.2)
    found = sampled(corpus, tmp_path, "web", config, count=200)
    info, num_bytes, core_s = made(corpus, tmp_path / "out", "web", config)
    assert 200 <= found.num_sampled < info.num_inputs / 5
    assert sum(found.num_inputs) / 2 == pytest.approx(info.num_inputs, rel=0.15)
    assert found.num_inputs.low < found.num_inputs.high
    check(found, info, num_bytes)
    assert sum(found.core_s) / 2 / 3 < core_s < sum(found.core_s) / 2 * 3
    assert not list(tmp_path.glob("sample-*"))


@pytest.mark.slow
def test_a_list_that_is_read_whole_tells_the_number_of_inputs(corpus: Path, tmp_path: Path):
    found = sampled(corpus, tmp_path, "chartqa", PrepareConfig(), count=40)
    info, num_bytes, _ = made(corpus, tmp_path / "out", "chartqa", PrepareConfig())
    assert found.num_inputs == EstimateInterval(info.num_inputs, info.num_inputs)
    assert found.num_records.low <= info.num_records <= found.num_records.high
    assert sum(found.num_bytes) / 2 == pytest.approx(num_bytes, rel=0.15)


@pytest.mark.deep
def test_the_process_that_decodes_clips_is_counted(tmp_path: Path):
    sizes = CorpusConfig(
        num_web=0,
        num_charts=0,
        num_scenes=0,
        num_videos=30,
        num_defects=0,
        video_width=192,
        video_height=144,
    )
    render_corpus(sizes, str(tmp_path / "corpus"))
    config = PrepareConfig(num_workers=1)
    found = sampled(tmp_path / "corpus", tmp_path, "msvd_qa", config, count=20)
    info, num_bytes, core_s = made(tmp_path / "corpus", tmp_path / "out", "msvd_qa", config)
    check(found, info, num_bytes)
    # Clips this small take less than Beam's start, which differs from run to run by more than they
    # do; without the process that decodes them the sample would say a fortieth of the whole.
    assert core_s / 10 < sum(found.core_s) / 2 < core_s


@pytest.mark.slow
def test_a_sample_is_the_same_each_time_but_for_its_seconds(corpus: Path, tmp_path: Path):
    for source in ("web", "chartqa"):
        first, second = (sampled(corpus, tmp_path, source, count=24) for _ in range(2))
        assert first.num_bytes == second.num_bytes
        assert first.num_records == second.num_records
        assert first.num_inputs == second.num_inputs


def test_all_items_of_a_picture_are_prepared_together(corpus: Path, tmp_path: Path, monkeypatch):
    pieces: list[Counter[str]] = []
    write = sampling.write_piece

    def noted(work_folder, shard, number, video):
        lines = work_folder.files.read(piece_list_name(shard, number)).decode().splitlines()
        pieces.append(Counter(map(pixels_key, lines)))
        return write(work_folder, shard, number, video)

    monkeypatch.setattr(sampling, "write_piece", noted)
    found = sampled(corpus, tmp_path, "web", count=40)
    groups = pieces[1::2]  # Of each archive the first loads the decoders, and is not counted.
    assert len(groups) == 8
    uses = sum(groups, Counter())
    assert sum(map(len, groups)) == len(uses)
    assert max(uses.values()) > 1
    assert found.num_sampled == uses.total()


def test_no_more_than_there_are_leaves_nothing_to_guess(corpus: Path, tmp_path: Path):
    found = sampled(corpus, tmp_path, "chartqa", split="val", count=10_000)
    assert found.num_sampled == found.num_inputs.low == found.num_inputs.high
    for ends in (found.num_records, found.num_bytes, found.core_s):
        assert ends.low == pytest.approx(ends.high)
    assert found.num_records.low == found.num_sampled - found.num_rejected


@pytest.mark.parametrize("source", ["web", "chartqa"])
def test_of_a_part_what_is_taken_is_told(source: str, corpus: Path, tmp_path: Path):
    whole = sampled(corpus, tmp_path, source)
    limited = PrepareConfig(image_px=112, num_workers=1, examples_per_task=2, limit=30)
    ways: list[dict] = [{"config": limited}]
    if source == "chartqa":  # The web has no splits.
        ways.append({"split": "train[:30]"})
    for way in ways:
        part = sampled(corpus, tmp_path, source, **way)
        assert part.num_inputs == (30, 30)
        assert 0 < part.num_records.high < 45
        assert part.num_bytes.high < whole.num_bytes.high / 2


def test_broken_inputs_are_rejects_of_the_sample(corpus: Path, tmp_path: Path):
    found = sampled(corpus, tmp_path, "msvd_qa", count=10_000)
    assert 0 < found.num_rejected < found.num_sampled
    assert found.num_records.high < found.num_inputs.high


def test_what_is_wrong_with_a_request_is_what_preparing_says(corpus: Path, tmp_path: Path):
    with pytest.raises(ValueError, match="split of chartqa must be"):
        sampled(corpus, tmp_path, "chartqa", split="dev")
    with pytest.raises(FileNotFoundError, match=r"not a folder; .*data_root"):
        sampled(tmp_path / "nowhere", tmp_path, "chartqa")


def test_units_count_by_their_bytes(tmp_path: Path):
    """Of nine archives one is as large as all others: it stands for as much."""
    (tmp_path / "web").mkdir()
    for number in range(9):
        with tarfile.open(tmp_path / f"web/{number}.tar", "w") as tar:
            for member in range(64 if number == 4 else 8):
                for suffix in ("txt", "json"):
                    (tmp_path / "member").write_text("{}")
                    tar.add(tmp_path / "member", f"{number}-{member:03d}.{suffix}")
    found = sampled(tmp_path, tmp_path, "web")
    # No pictures, so no items either: everything is a reject of the list.
    assert found.num_sampled == 0
    assert found.num_inputs.low <= 128 <= found.num_inputs.high
    assert found.num_records == (0, 0)


def test_groups_that_agree_leave_no_doubt_and_others_as_much_as_they_differ():
    assert sampling._scale_to_dataset([2, 4, 6], [1, 2, 3], 60) == pytest.approx((120, 120))
    # Student's t of two groups at 95 % is 12.706; their means differ from 3 by 1.
    low, high = sampling._scale_to_dataset([2, 4], [1, 1], 10)
    assert (low, high) == pytest.approx((0, 30 + 12.706 * 10), rel=1e-4)
    low, high = sampling._scale_to_dataset([2, 4, 3, 3], [1, 1, 1, 1], 10, undrawn_share=0.25)
    error = 3.1824 * 10 * (2 / 3 / 4 * 0.25) ** 0.5
    assert (low, high) == pytest.approx((30 - error, 30 + error), rel=1e-4)
    assert sampling._scale_to_dataset([2, 4], [1, 1], 10, undrawn_share=0) == pytest.approx(
        (30, 30)
    )
    assert sampling._scale_to_dataset([], [], 10) == (0, 0)
