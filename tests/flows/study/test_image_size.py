"""Images are prepared at the model's size, said or not."""

import pytest

from flows.study.load import check_config
from infra.errors import ConfigError

BASE = {
    "model": {"vision": {"image_px": 448}},
    "budgets": [64, 1024],
    "sources": [{"reader": "web"}, {"reader": "nlvr", "prepare": {"num_shards": 2}}],
    "transfers": {"chartqa": {"prepare": {"num_shards": 3}}, "nlvr": {}},
    "data_root": "somewhere",
}


def test_images_are_prepared_at_the_models_size_where_a_config_does_not_say():
    study = check_config(BASE, source="here")
    assert study.prepare.image_px == 448
    assert study.sources[1].prepare is not None
    assert (study.sources[1].prepare.image_px, study.sources[1].prepare.num_shards) == (448, 2)
    chartqa = study.transfers["chartqa"].prepare
    assert chartqa is not None
    assert (chartqa.image_px, chartqa.num_shards) == (448, 3)
    assert "prepare" not in BASE  # What was given stays as it is.


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"prepare": {"image_px": 224}}, "prepare"),
        ({"sources": [{"reader": "web", "prepare": {"image_px": 224}}]}, r"sources\.0\.prepare"),
        ({"transfers": {"nlvr": {"prepare": {"image_px": 224}}}}, r"transfers\.nlvr\.prepare"),
    ],
)
def test_another_size_is_refused_with_the_cure(more: dict, field: str):
    told = rf"{field}\.image_px must be model\.vision\.image_px=448, got 224; leave it out"
    with pytest.raises(ConfigError, match=told) as refused:
        check_config({**BASE, **more}, source="here")
    assert "\n" not in str(refused.value)


def test_a_size_that_is_none_is_told_by_its_own_key():
    with pytest.raises(ConfigError, match=r"model\.vision\.image_px: .*got 'large'"):
        check_config({**BASE, "model": {"vision": {"image_px": "large"}}}, source="here")
