import pytest

from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.render import render_corpus

SMALL = CorpusConfig(
    num_web=23,
    num_charts=31,
    num_scenes=19,
    num_videos=13,
    num_defects=3,
    image_width=132,
    image_height=120,
    video_width=80,
    video_height=64,
    video_frames=20,
    shard_size=9,
    seed=5,
)


@pytest.fixture(scope="session")
def small():
    return SMALL


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """The folder of a small corpus; read only."""
    root = tmp_path_factory.mktemp("corpus")
    render_corpus(SMALL, str(root))
    return root
