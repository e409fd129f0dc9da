"""The view of a study on one backbone, at one resolution: what its steps are made from."""

import dataclasses
from collections.abc import Mapping

from flows.config.benchmark import EvalRow, eval_rows_of
from flows.study.settings import StudySettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyView(StudySettings):
    """A study on one backbone, at one resolution, with the settings that hold there.

    Attributes:
      backbone: name of the backbone; "" where the study has one only.
      backbone_keys: setting -> its config key, of what the backbone states in the place of the
        study.
      resolution_key: config key of what a higher resolution has of its own, "stage2" or
        "stages.N.resolution"; "" at the backbone's own resolution.
      higher: the views at the higher resolutions of the same backbone, first that of Stage 2.
    """

    backbone: str = ""
    backbone_keys: Mapping[str, str] = dataclasses.field(default_factory=dict)
    resolution_key: str = ""
    higher: "tuple[StudyView, ...]" = ()

    @property
    def resolutions(self) -> "tuple[StudyView, ...]":
        """The backbone at this resolution, then at those of Stage 2 and of the own stages."""
        return (self, *self.higher)

    @property
    def is_higher(self) -> bool:
        """Whether the resolution is a higher one than the backbone's own."""
        return bool(self.resolution_key)

    @property
    def backbone_suffix(self) -> str:
        """Suffix of the names of what is of the backbone alone: "" or "@siglip2+gemma3"."""
        return f"@{self.backbone}" if self.backbone else ""

    @property
    def view_suffix(self) -> str:
        """Suffix of the names of steps and rows: "", "@448", or "@448@siglip2+gemma3"."""
        px = f"@{self.model.vision.image_px}" if self.is_higher else ""
        return px + self.backbone_suffix

    @property
    def key_prefix(self) -> str:
        """Beginning of the config keys of what a resolution has of its own, such as transfers."""
        return f"{self.resolution_key}." if self.is_higher else ""

    def dataset_role(self, name: str) -> str:
        """Returns the name that a dataset has in a study of this backbone alone.

        Steps know what they read by it, so that both studies have the same steps.
        """
        return name.replace(self.backbone_suffix, "", 1) if self.backbone else name

    @property
    def input_paths(self) -> dict[str, str]:
        """Config key -> path of a file that the backbone reads instead of making it."""
        starts = self.start if isinstance(self.start, dict) else {"": self.start}
        paths = {
            "tokenizer.path": self.tokenizer.path,
            "mask_codec.path": self.mask_codec.path if self.mask_codec else None,
            **{f"start.{method}".rstrip("."): path for method, path in starts.items()},
        }
        return {key: path for key, path in paths.items() if path is not None}

    @property
    def eval_rows(self) -> dict[str, EvalRow]:
        """Row name -> the row, for every split that is prepared for evaluation."""
        rows = (row for name, entry in self.transfers.items() for row in eval_rows_of(name, entry))
        named = (dataclasses.replace(row, name=f"{row.name}{self.view_suffix}") for row in rows)
        return {row.name: row for row in named}

    @property
    def rows(self) -> dict[str, EvalRow]:
        """Row name -> the row, for every row of the results: benchmarks with `transfer: true`."""
        scored = {name for name, entry in self.transfers.items() if entry.transfer}
        return {name: row for name, row in self.eval_rows.items() if row.benchmark in scored}
