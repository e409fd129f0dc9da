"""Config of one training corpus of a study's mixture."""

import dataclasses

from pipelines.prepare.config import PrepareConfig
from pipelines.sources.corpus import check_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One training corpus of the mixture.

    Attributes:
      reader: name of the corpus's published layout: "web", "nlvr", "videos", ...; or a function of
        yours, as in `TransferConfig`, whose rows hold the prompts.
      path: folder of the corpus below the data root; "" takes the reader's usual folder.
      split: split to train on, where the layout has several.
      features: for "tfrecord" and "tfds", the feature of a record that holds each part: {image:
        image/encoded, caption: caption}.
      prepare: preparation settings of this corpus; None takes the study's.
    """

    reader: str
    path: str = ""
    split: str = "train"
    features: dict[str, str] = dataclasses.field(default_factory=dict)
    prepare: PrepareConfig | None = None

    def __post_init__(self) -> None:
        check_features(self.features)

    @property
    def name(self) -> str:
        """Name of the dataset that the corpus becomes."""
        return f"mixture/{self.path or self.reader}"
