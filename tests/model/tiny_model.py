"""Tiny models, with the real structure."""

from collections.abc import Iterator
from pathlib import Path

from infra.progress import COMPILING, Progress
from model import vlm
from model.checkpoint.folder import save_checkpoint
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.text.config import TextConfig
from model.vision.config import VisionConfig
from tests.model.tiny_data import write_tokenizer


def tiny_model(kind: str = "vanilla", buckets: tuple[int, ...] = ()) -> ModelConfig:
    """A model of two small towers on 8x8 patches."""
    return ModelConfig(
        vision=VisionConfig(image_px=32, patch_px=4, width=12, depth=1, mlp_dim=20, num_heads=3),
        text=TextConfig(
            vocab_size=1500, width=20, depth=2, mlp_dim=28, num_heads=2, num_kv_heads=1, head_dim=6
        ),
        connector=ConnectorConfig(kind=kind, num_heads=3, mlp_dim=14, buckets=buckets),
        projector_init="xavier",
        remat="none",
        scan_layers=False,
    )


def write_checkpoint(root: Path, model: ModelConfig) -> str:
    """Writes an untrained checkpoint, which answers nonsense, and returns its folder."""
    folder = root / "checkpoint"
    folder.mkdir()
    save_checkpoint(
        str(folder),
        model=model,
        params=vlm.init_params(model, 0),
        tokenizer=write_tokenizer(root / "tokenizer.model"),
        mask_codec=None,
    )
    return str(folder)


def without_compiling(progress: Iterator[Progress]) -> Iterator[Progress]:
    """The progress of a stage, or of an evaluation, without the notes that it compiles."""
    return (one for one in progress if one.note != COMPILING)
