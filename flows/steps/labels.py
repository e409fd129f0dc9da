"""The labels of a step, from which its name is written; nobody reads them out of a name."""

import contextlib
import dataclasses
import re
from typing import Any

from infra.store.manifest import LABELS, Manifest
from infra.typed_json import typed

_OF_DATA = ("files", "prepare", "screen", "chance", "results")
"""Actions on something that has a name of its own: a dataset, a row, a key of the config, a study.
"""
# As manifests had them before their labels were recorded.
_NAME = re.compile(
    r"(?P<action>mask codec|[^ @]+)(?P<rest>.*?)"
    r"( seed=(?P<seed>\d+))?( budget=(?P<budget>\d+))?( pretrain=(?P<pretraining>\d+))?"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels:
    """The facts by which people tell the steps of a study apart. They are no part of an identity.

    A fact is stated only where it tells steps of the study apart: with one backbone, no step states
    it.

        prepare chartqa/train                     action, subject
        stage1 vanilla pretrain=1                 action, method, pretraining
        transfer parcel chartqa@448 seed=48213    action, method, benchmark, pixels, seed
        evaluate parcel chartqa:test_human@siglip2+gemma3 seed=48213 budget=16
                                                  action, method, benchmark, backbone, seed, budget

    Attributes:
      action: what is done: "prepare", "stage1", "transfer", "evaluate", …; a user's own class.
      subject: what it is done to, where that has a name of its own: a dataset, a file's config key,
        a study.
      method: the method.
      benchmark: the benchmark, or its row "chartqa:test_human".
      pixels: image size, where it is not the study's first [pixels].
      backbone: the backbone, where the study has several and they do not share the step.
      seed: seed of the transfer.
      budget: number of visual tokens.
      pretraining: number of the pretraining, where the study has several.
      title: name that a user's own step was given; "" where the name is written from the facts.
    """

    action: str
    subject: str = ""
    method: str = ""
    benchmark: str = ""
    pixels: int | None = None
    backbone: str = ""
    seed: int | None = None
    budget: int | None = None
    pretraining: int | None = None
    title: str = ""

    @property
    def name(self) -> str:
        """The step's name, for people."""
        if self.title:
            return self.title
        parts = [self.action, self.method, self.benchmark, self.subject]
        words = " ".join(filter(None, parts))
        if self.pixels is not None:
            words += f"@{self.pixels}"
        if self.backbone:
            words += f"@{self.backbone}"
        numbers = {"seed": self.seed, "budget": self.budget, "pretrain": self.pretraining}
        return words + "".join(f" {n}={value}" for n, value in numbers.items() if value is not None)

    def but_for_seeds(self) -> "Labels":
        """Returns the labels without the seeds, which are alike for all seeds of a step."""
        return dataclasses.replace(self, seed=None, pretraining=None)

    def to_json(self) -> dict[str, Any]:
        """Returns the facts that are stated."""
        return {name: value for name, value in vars(self).items() if value not in ("", None)}


def labels_of(manifest: Manifest) -> Labels:
    """Returns the labels of the step that made an artifact.

    They are read from its name where none are recorded, as before there were labels, or where what
    is recorded is damaged: pages and sweeps go on.
    """
    recorded = manifest.environment.get(LABELS)
    if recorded is not None:
        with contextlib.suppress(ValueError):
            return typed(Labels, recorded, LABELS)
    if manifest.kind.startswith("user_"):
        return labels_of_user_step(manifest.config["step"], manifest.name)
    return labels_of_step_name(manifest.name)


def labels_of_user_step(reference: str, name: str) -> Labels:
    """Returns the labels of a step of a user's own class, "module:Class"."""
    return Labels(action=reference.rpartition(":")[2], title=name)


def labels_of_step_name(name: str) -> Labels:
    """Returns the labels that a name was written from, in manifests that have no others."""
    parts = _NAME.fullmatch(name)
    if parts is None:
        return Labels(action=name)
    numbers: dict[str, Any] = {
        key: int(parts[key]) for key in ("seed", "budget", "pretraining") if parts[key]
    }
    if parts["action"] in _OF_DATA:
        return Labels(action=parts["action"], subject=parts["rest"].strip(), **numbers)
    words, *places = parts["rest"].split("@")
    method, _, benchmark = words.strip().partition(" ")
    pixels = int(places.pop(0)) if places and places[0].isdigit() else None
    backbone = "@".join(places)
    return Labels(
        action=parts["action"],
        method=method,
        benchmark=benchmark,
        pixels=pixels,
        backbone=backbone,
        **numbers,
    )
