import dataclasses
import hashlib

import pytest

from pipelines.synthetic.config import CorpusConfig, split_items
from pipelines.synthetic.render import render_corpus


def digests(root):
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_same_config_gives_the_same_bytes(corpus, small, tmp_path):
    render_corpus(small, str(tmp_path / "again"))
    assert digests(tmp_path / "again") == digests(corpus)


def test_another_seed_gives_other_pictures_under_the_same_names(small, corpus, tmp_path):
    config = dataclasses.replace(small, seed=6, num_web=0, num_videos=0)
    render_corpus(config, str(tmp_path))
    other, first = digests(tmp_path), digests(corpus)
    assert other.keys() <= first.keys()
    pictures = [name for name in other if name.endswith(("png", "jpg"))]
    assert pictures
    assert all(other[name] != first[name] for name in pictures)


def test_an_item_does_not_depend_on_how_many_there_are(small, corpus, tmp_path):
    config = dataclasses.replace(small, num_web=0, num_scenes=11, num_charts=12, num_videos=0)
    render_corpus(config, str(tmp_path))
    few, many = digests(tmp_path), digests(corpus)
    scenes = [name for name in few if name.endswith("jpg")]
    assert len(scenes) == 11
    assert all(few[name] == many[name] for name in scenes)


def test_progress_counts_every_item_once_and_empty_corpora_are_left_out(tmp_path):
    seen = []
    config = CorpusConfig(num_web=0, num_charts=10, num_scenes=0, num_videos=0, num_defects=0)
    render_corpus(config, str(tmp_path), lambda *progress: seen.append(progress))
    assert seen == [(done, 10, "charts") for done in range(1, 11)]
    assert [path.name for path in tmp_path.iterdir()] == ["chartqa"]


def test_refuses_a_folder_that_holds_something(corpus, small):
    with pytest.raises(ValueError, match="empty or absent"):
        render_corpus(small, str(corpus))


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_charts", 3), ("image_width", 100), ("video_height", 33), ("video_fps", 0), ("seed", -1)],
)
def test_wrong_configs_name_the_field_and_the_value(field, value):
    with pytest.raises(ValueError, match=f"{field} must be .*{value}"):
        CorpusConfig(**{field: value})


def test_splits_are_disjoint_complete_and_never_empty():
    for count in (10, 11, 97):
        ranges = split_items(count, {"train": 0.7, "val": 0.1, "test": 0.2})
        assert all(ranges.values())
        assert sorted(i for r in ranges.values() for i in r) == list(range(count))
