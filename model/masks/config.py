"""Settings of the mask codec."""

import dataclasses

from infra.store.digest import NOT_IDENTITY


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskCodecConfig:
    """Size and training of the mask codec, or the file of a trained one.

    Attributes:
      path: file of a trained codec, like the published `vae-oid.npz`; None trains one on the
        study's masks. With a file, all other settings but `max_crops` are unused.
      width: channels of the encoder, and of the decoder before its four halvings; a multiple of 8.
      embed_dim: width of a codeword (512 in the published file).
      train_steps: updates; the first third trains without the codebook.
      batch_size: crops per update.
      peak_lr: learning rate after warm-up.
      max_crops: largest number of masks to train on, or to test a given codec on.
    """

    path: str | None = dataclasses.field(default=None, metadata=NOT_IDENTITY)
    width: int = 32
    embed_dim: int = 64
    train_steps: int = 140
    batch_size: int = 24
    peak_lr: float = 2e-3
    max_crops: int = 2000

    def __post_init__(self) -> None:
        if self.width < 8 or self.width % 8:
            raise ValueError(f"width must be a positive multiple of 8, got {self.width}.")
        for name in ("embed_dim", "train_steps", "batch_size", "max_crops"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.peak_lr <= 0:
            raise ValueError(f"peak_lr must be positive, got {self.peak_lr}.")
