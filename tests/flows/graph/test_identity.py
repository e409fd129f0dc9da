"""The identities of the demo's steps, which no move or renaming of code may change."""

import hashlib

from flows.graph.graph import graph_of
from flows.steps.kind import Step
from flows.study.load import load
from infra.store.digest import members_sha256

DEMO = "845ea71ec6c0cf6acbb046a653a680d991588f0c65c8ddbe44a22b2807ba9bd8"
"""Digest over the sorted identities of all steps of the demo. It changes with the demo itself, with
a recipe of the registry or with a default; whoever changes one of these writes down the new digest,
and a line in CHANGELOG.md."""


def test_the_identities_of_the_demos_steps_stay_as_they_are():
    known: dict[Step, str] = {}
    for step in graph_of(load()).steps:
        known[step] = _identity(step, known)
    assert len(set(known.values())) == len(known)
    kinds = {identity.partition(" ")[0] for identity in known.values()}
    assert {"corpus", "dataset", "tokenizer", "mask_codec", "checkpoint", "results"} <= kinds
    assert hashlib.sha256("\n".join(sorted(known.values())).encode()).hexdigest() == DEMO


def _identity(step: Step, known: dict[Step, str]) -> str:
    """Returns kind and digest of what `Recipe.identity` is made of, before any artifact exists.

    An input's identity stands for its contents. Versions of libraries are left out.
    """
    parts = {
        "kind": step.kind,
        "inputs": {role: known[read] for role, read in step.inputs.items()},
        "config": step.config,
        "seed": step.seed,
    }
    return f"{step.kind} {members_sha256(parts)}"
