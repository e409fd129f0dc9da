"""Config of one training corpus of a study's mixture."""

import dataclasses

from flows.config.licences import StatedLicence
from pipelines.prepare.config import PrepareConfig
from pipelines.records.licence import Licence
from pipelines.sources.reading.corpus import check_features


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceConfig:
    """One training corpus of the mixture.

    Attributes:
      reader: name of the corpus's published layout: "web", "nlvr", "videos", ...; or a function of
        yours, as in `TransferConfig`, whose rows hold the prompts.
      path: folder of the corpus below the data root; "" takes the reader's usual folder.
      split: split to train on, where the layout has several.
      features: for "tfrecord" and "tfds", the feature of a record that holds each part: {image:
        image/encoded, caption: caption}; for these and "web", the field or column of the `licence`
        of a record, of its `holder` and `address`.
      licence: licence of its records that state none themselves: an SPDX identifier, other words,
        or {licence, holder, address}; left out, that which `parcel data fetch` noted beside them.
      prepare: preparation settings of this corpus; None takes the study's.
    """

    reader: str
    path: str = ""
    split: str = "train"
    features: dict[str, str] = dataclasses.field(default_factory=dict)
    licence: StatedLicence = Licence()
    prepare: PrepareConfig | None = None

    def __post_init__(self) -> None:
        check_features(self.features)

    @property
    def name(self) -> str:
        """Name of the dataset that the corpus becomes."""
        return f"mixture/{self.path or self.reader}"
