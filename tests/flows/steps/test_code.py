"""A step's code is what its function can reach: nothing more, nothing less."""

import re

import pytest

from flows.steps.code import DynamicImportError, Tree, changes, checkout, code_sha256
from flows.steps.registry import KINDS, code_of

CONFIGS = {
    "dataset": {"reader": "chartqa"},
    "raw_files": {"reader": "chartqa"},
    "checkpoint": {"model": {"connector": {"kind": "parcel"}}},
    "predictions": {"decode": {"metric": "vqa"}},
    "chance": "vqa",
    "router": {"decode": {"metric": "vqa"}},
    "routed": {"decode": {"metric": "vqa"}},
}
REACHES = {
    "corpus": ("pipelines.synthetic.render", "pipelines.records.rle"),
    "dataset": (
        "pipelines.prepare.shards",
        "pipelines.sources.documents.chartqa",
        "pipelines.video.child",
    ),
    "screened": ("pipelines.hygiene.detail",),
    "tokenizer": ("model.text.tokenizer", "pipelines.records.dataset"),
    "mask_codec": ("model.masks.training",),
    "checkpoint": ("model.train.step", "model.connector.parcel", "model.data.loader"),
    "predictions": ("model.decode.beam", "model.eval.metrics.miou"),
    "chance": ("model.eval.chance",),
    "router": ("model.router.head", "model.router.features", "model.decode.beam"),
    "routed": ("model.eval.routed", "model.router.head"),
    "results": ("flows.report.build", "flows.report.latex"),
}
"""Kind -> some modules of its code, imports inside functions among them."""

OUT_OF_REACH = {
    "corpus": ("pipelines.sources.documents.chartqa", "model.vlm"),
    "dataset": ("pipelines.sources.segmentation.refcoco", "pipelines.hygiene.index", "model.vlm"),
    "checkpoint": ("model.analysis.flops", "model.decode.beam", "pipelines.prepare.run"),
    "predictions": ("model.train.optimizer",),
    "chance": ("model.vlm",),
    "router": ("model.train.optimizer", "flows.report.routed"),
    "routed": ("model.train.optimizer", "flows.report.routed"),
    "results": ("model.vlm", "flows.study.graph"),
}
"""Kind -> modules in which an edit leaves its artifacts as they are."""

FIRST_LINE = re.compile(rb"\A(\"\"\".*?\"\"\")", re.DOTALL)
CONSTANT = re.compile(rb"(?m)^([A-Z_]+) = [^(\[{\n]*$")


def path_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def edited(module: str, edit) -> Tree:
    files = dict(checkout().files)
    before = files[path_of(module)]
    files[path_of(module)] = edit(before)
    assert files[path_of(module)] != before
    return Tree(files)


EDITS = {
    "comment": lambda text: (
        text.replace(b"\nimport ", b"\n# Why not.\nimport ", 1)
        if b"\nimport " in text
        else text + b"\n# Why not.\n"
    ),
    "docstring": lambda text: FIRST_LINE.sub(b'"""Said otherwise.\n\nAt length."""', text, count=1),
    "formatting": lambda text: text.replace(b"\n\n", b"\n\n\n", 3) + b"\n",
}
"""Edits that mean nothing to a program."""


def digest(kind: str, tree: Tree | None = None) -> str:
    return code_sha256(code_of(kind, CONFIGS.get(kind), tree))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_code_and_none_of_it_imports_dynamically(kind: str):
    reached = code_of(kind, CONFIGS.get(kind))
    assert KINDS[kind].make.__module__ in reached
    assert not any(name.startswith("infra") for name in reached)


@pytest.mark.parametrize(
    ("kind", "module"), [(kind, module) for kind, all_ in REACHES.items() for module in all_]
)
def test_edits_within_reach(kind: str, module: str):
    before = digest(kind)
    for name, edit in EDITS.items():
        assert digest(kind, edited(module, edit)) == before, name
    added = edited(module, lambda text: text + b"\n_ANSWER = 42\n")
    assert digest(kind, added) != before
    if CONSTANT.search(checkout().text(module)):
        changed = edited(module, lambda text: CONSTANT.sub(rb"\1 = 7_777_777", text, count=1))
        assert digest(kind, changed) != before


@pytest.mark.parametrize(
    ("kind", "module"), [(kind, module) for kind, all_ in OUT_OF_REACH.items() for module in all_]
)
def test_edits_out_of_reach(kind: str, module: str):
    changed = edited(module, lambda text: text + b"\n_ANSWER = 42\n")
    assert digest(kind, changed) == digest(kind)


def test_a_dataset_has_the_code_of_its_own_reader():
    of = {
        name: code_of("dataset", {"reader": name})
        for name in ("chartqa", "refcoco", "web", "msvd_qa", "jsonl")
    }
    assert len({code_sha256(code) for code in of.values()}) == len(of)
    assert "pipelines.sources.segmentation.refcoco" in of["refcoco"]
    assert "pipelines.sources.segmentation.refcoco" not in of["web"]


def tree(**files: str) -> Tree:
    return Tree({name.replace("__", "/") + ".py": text.encode() for name, text in files.items()})


def test_imports_are_followed_wherever_they_stand():
    made = tree(
        model__a="def f():\n    from model import b\n",
        model__b="RUN = ['-m', 'model.c']\n",
        model__c="import model.d\n",
        model__d="import os\n",
        model__e="",
    )
    assert list(made.reach(["model.a"])) == ["model.a", "model.b", "model.c", "model.d"]
    assert list(made.reach(["model.a"], stop=["model.b"])) == ["model.a"]


@pytest.mark.parametrize(
    "line",
    [
        "importlib.import_module(name)",
        "import_module(f'model.{x}')",
        "__import__(name)",
        "exec(text)",
        "runpy.run_module(name)",
        "from .b import name",
        "from importlib import import_module as im",
        "load = importlib.import_module",
        "importlib.util.spec_from_file_location(name, text)",
    ],
)
def test_imports_by_a_computed_name_are_refused(line: str):
    made = tree(model__a="import model.b\n", model__b=f"def f(name, text, x):\n    {line}\n")
    with pytest.raises(DynamicImportError, match=r"model\.b line 2: .* import the module by its"):
        made.reach(["model.a"])
    made.reach(["model.a"], stop=["model.b"])


def test_changes_are_told_by_function():
    before = "X = 1\ndef f():\n    return 1\nclass C:\n    y = 2\n    def m(self):\n        pass\n"
    assert changes(tree(model__a=before), tree(model__a=before + "# more\n"), ["model.a"]) == []
    for old, new, told in (
        ("return 1", "return 2", ["model.a.f"]),
        ("X = 1", "X = 2", ["model.a.X"]),
        ("X = 1", "import x", ["model.a", "model.a.X"]),
        ("y = 2", "y = 3", ["model.a.C.y"]),
        ("pass", "return 1", ["model.a.C.m"]),
        ("class C", "class C(list)", ["model.a.C (class)"]),
        ("def f", "def g", ["model.a.f", "model.a.g"]),
    ):
        after = tree(model__a=before.replace(old, new))
        assert sorted(changes(tree(model__a=before), after, ["model.a"])) == told
    assert changes(tree(), tree(model__a="def f(): pass\n"), ["model.a"]) == [
        "model.a",
        "model.a.f",
    ]
