"""One training corpus of a study's mixture."""

import dataclasses

from pipelines.prepare.config import PrepareConfig
from pipelines.sources.corpus import check_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One training corpus of the mixture.

    Attributes:
      reader: its published layout: "web", "nlvr", "videos", ...; or a function of one's own, as in
        `TransferConfig`, whose rows say what is asked.
      path: its folder below the data root; "" takes the reader's usual one.
      split: which split, where the layout has several.
      features: of "tfrecord" and "tfds", which feature of a record holds what: {image:
        image/encoded, caption: caption}.
      prepare: settings of this corpus that differ from the study's; none by default.
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
        """Names the dataset it becomes."""
        return f"mixture/{self.path or self.reader}"
