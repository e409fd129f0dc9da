"""A step's code is what its function can reach: nothing more, nothing less."""

import contextlib
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.steps.registry import KINDS, step_code
from infra.source_code import (
    DynamicImportError,
    Tree,
    _ModuleCache,
    changed_definitions,
    checkout,
    code_sha256,
    parse_module,
    read_module,
)

ROOT = Path(__file__).parents[2]
CONFIGS = {
    "dataset": {"reader": "chartqa"},
    "raw_files": {"reader": "chartqa"},
    "checkpoint": {"model": {"connector": {"kind": "parcel"}}, "train": {}},
    "predictions": {"decode": {}, "connector": "parcel"},
    "scores": {"metric": "miou"},
    "chance": "vqa",
    **{f"user_{what}": {"step": "json:dumps"} for what in ("dataset", "checkpoint", "files")},
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
    "predictions": ("model.decode.beam", "model.eval.run", "model.connector.parcel"),
    "scores": ("model.eval.metrics.miou", "model.eval.scorer", "model.eval.items_file"),
    "chance": ("model.eval.chance",),
    "results": ("flows.report.build", "flows.report.latex"),
}
"""Kind -> some modules of its code, imports inside functions among them."""

OUT_OF_REACH = {
    "corpus": ("pipelines.sources.documents.chartqa", "model.vlm"),
    "dataset": ("pipelines.sources.segmentation.refcoco", "pipelines.hygiene.index", "model.vlm"),
    "checkpoint": ("model.analysis.flops", "model.decode.beam", "pipelines.prepare.run"),
    "predictions": ("model.train.optimizer", "model.eval.scorer", "model.connector.mqt"),
    "scores": ("model.vlm", "model.decode.beam", "model.eval.run", "model.eval.metrics.vqa"),
    "chance": ("model.vlm",),
    "results": ("model.vlm", "flows.graph.graph"),
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
    return code_sha256(step_code(kind, CONFIGS.get(kind), tree))


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_has_code_and_none_of_it_imports_dynamically(kind: str):
    reached = step_code(kind, CONFIGS.get(kind))
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
        name: step_code("dataset", {"reader": name})
        for name in ("chartqa", "refcoco", "web", "msvd_qa", "jsonl")
    }
    assert len({code_sha256(code) for code in of.values()}) == len(of)
    assert "pipelines.sources.segmentation.refcoco" in of["refcoco"]
    assert "pipelines.sources.segmentation.refcoco" not in of["web"]


def test_no_layer_below_flows_names_a_module_of_it():
    below = ("infra/", "model/", "pipelines/")
    named = {
        path: [name for name in read_module(text).names if re.search(r"\bflows[./]\w", name)]
        for path, text in checkout().files.items()
        if path.endswith(".py") and path.startswith(below)
    }
    assert "infra/source_code.py" in named
    assert {path: names for path, names in named.items() if names} == {}


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
    assert list(made.reach(["model.a"], outside=["model.b"])) == ["model.a"]


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
    with pytest.raises(DynamicImportError, match=r"model\.b line 2: "):
        made.reach(["model.a"])
    made.reach(["model.a"], stop=["model.b"])


GOLDEN = (
    r"""
import a.b as c
@d(1)
class C(D, m=E):
    "A docstring,   with white space."
    x: int = 0
    def f(self, a, /, b=[], *c: int, d, e=(), **g) -> None:
        "Another."
        match a:
            case [1, *_] | {"k": v, **r} if a: return {**a, 1: 2}, lambda: (yield)
        try: del a[1:, ...]
        except* E: pass
async def g():
    async with a as b, c: return [await x async for x in y if z]
formats = [f'{x!r:>{w}}', f'{x:{w}.{p}}', f'{x:}', f'{x}', f'{x:%d}']
pieces = ['a' f'{x}' 'b' f'c' '', u'a' f'{x}', f'', f'{x = }', f'{d[1] = !s:^9}', f'{{{x}}}']
texts = [u'a', 'é', 'a\ud800', '\U0001fadc', b'\xff', r'\d']
numbers = [1, 1.0, -0.0, 1e999, 1e-7, 1j, True, None, ...]
"""
    + f"long = {hex(10**5000)}\n"
)
"""What the trees of Python 3.11, 3.12 and 3.13 differ in, and a little of everything."""


def test_the_digest_of_a_module_is_the_same_under_every_python():
    # Python 3.11.7, 3.12.1 and 3.13.0 gave this, 26 November 2026.
    assert parse_module(GOLDEN.encode()).digest == (
        "cad849cdb3a13799efe3f8dc2b66340d1bb3986e803bbe592fe3483dbc6dfea2"
    )


def other_pythons() -> list[str]:
    """Returns the supported Pythons on PATH that run, apart from this one."""
    code = "import sys; print(*sys.version_info[:2])"
    found = {}
    for minor in (11, 12, 13):
        words = [f"python3.{minor}", "-c", code]
        with contextlib.suppress(OSError):
            done = subprocess.run(words, capture_output=True, text=True)
            if done.stdout.split() == ["3", str(minor)] and minor != sys.version_info.minor:
                found[minor] = words[0]
    return [*found.values()]


@pytest.mark.slow
def test_every_module_has_the_same_digest_under_every_python_of_this_machine():
    pythons = other_pythons()
    if not pythons:
        pytest.skip("no other Python of 3.11, 3.12 and 3.13 is on PATH")
    code = "from infra.source_code import checkout, parse_module\n"
    code += "for path, text in sorted(checkout().files.items()):\n"
    code += "    if path.endswith('.py'): print(path, parse_module(text).digest)"
    expected = "".join(
        f"{path} {parse_module(text).digest}\n"
        for path, text in sorted(checkout().files.items())
        if path.endswith(".py")
    )
    for python in pythons:
        done = subprocess.run([python, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert done.stdout == expected, (python, done.stderr[-1000:])


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("x = 1", "x = 0x1", True),
        ("x = 'a' 'b'", "x = 'ab'", True),
        ("x = u'a'", "x = 'a'", True),
        ("x = (1)", "x = 1", True),
        ("f(a, b)", "f(a,\n  b,)", True),
        ("x = 1", "x = 1.0", False),
        ("x = 1", "x = True", False),
        ("x = 'a'", "x = b'a'", False),
        ("x = None", "x = 0", False),
        ("x = 'None'", "x = None", False),
        ("x = 0.0", "x = -0.0", False),
        ("x = 1e999", "x = inf", False),
        ("x = 1j", "x = 1", False),
        ("x = ''", "x = f''", False),
        ("x = f'{y}'", "x = f'{y!s}'", False),
        ("x = f'{y:1}'", "x = f'{y:2}'", False),
        ("x = f'{y = }'", "x = f'{y=}'", False),
        ("x = [a, b]", "x = [b, a]", False),
        ("x = (a,)", "x = a", False),
        ("x = {**a}", "x = {None: a}", False),
        ("def f(*, a, b=1): pass", "def f(*, a=1, b): pass", False),
        ("def f(a, /): pass", "def f(a): pass", False),
        ("from . import a", "from .. import a", False),
        ("x: int", "(x): int", False),
        ("[a for a in b]", "[a async for a in b]", False),
    ],
)
def test_trees_of_other_meaning_have_other_digests(one: str, other: str, equal: bool):
    assert (parse_module(one.encode()).digest == parse_module(other.encode()).digest) == equal


def test_changes_are_told_by_function():
    before = "X = 1\ndef f():\n    return 1\nclass C:\n    y = 2\n    def m(self):\n        pass\n"
    assert (
        changed_definitions(tree(model__a=before), tree(model__a=before + "# more\n"), ["model.a"])
        == []
    )
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
        assert sorted(changed_definitions(tree(model__a=before), after, ["model.a"])) == told
    assert changed_definitions(tree(), tree(model__a="def f(): pass\n"), ["model.a"]) == [
        "model.a",
        "model.a.f",
    ]


SOURCES = (
    b"import numpy\nfrom model.vlm import init\nx = 'model.layers.relu'\n",
    b"from . import near\nfrom ..far import a, b\n",
    b"import importlib\nimportlib.import_module('x')\n",
)


def test_parsed_modules_are_read_back_as_they_were_parsed(tmp_path: Path):
    cache = _ModuleCache(tmp_path / "modules.json")
    parsed = [cache.read(text) for text in SOURCES]
    cache.save()
    assert [parse_module(text) for text in SOURCES] == parsed
    rows = json.loads((tmp_path / "modules.json").read_text())
    assert len(rows) == len(SOURCES)
    # A reader of the file parses nothing: it believes what stands there.
    rows[hashlib.sha256(SOURCES[0]).hexdigest()][0] = "another"
    (tmp_path / "modules.json").write_text(json.dumps(rows))
    again = _ModuleCache(tmp_path / "modules.json")
    assert again.read(SOURCES[0]).digest == "another"
    assert [again.read(text) for text in SOURCES[1:]] == parsed[1:]


def test_what_was_saved_is_not_read_and_written_again(tmp_path: Path):
    path = tmp_path / "modules.json"
    cache = _ModuleCache(path)
    cache.read(SOURCES[0])
    cache.save()
    path.unlink()
    cache.save()
    assert not path.exists()
    cache.read(SOURCES[1])
    cache.save()
    assert len(json.loads(path.read_text())) == 2


def test_processes_add_to_one_file_of_parsed_modules(tmp_path: Path):
    one, two = (_ModuleCache(tmp_path / "modules.json") for _ in range(2))
    one.read(SOURCES[0])
    two.read(SOURCES[1])
    one.save()
    two.save()
    assert len(json.loads((tmp_path / "modules.json").read_text())) == 2


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": [1]}', b'{"a": 1}', b"\xff"])
def test_a_spoilt_file_of_parsed_modules_is_made_anew(tmp_path: Path, content: bytes):
    path = tmp_path / "modules.json"
    path.write_bytes(content)
    cache = _ModuleCache(path)
    assert cache.read(SOURCES[0]) == parse_module(SOURCES[0])
    cache.save()
    assert len(json.loads(path.read_text())) == 1


def test_where_nothing_can_be_written_modules_are_parsed(tmp_path: Path):
    (tmp_path / "file").write_text("")
    cache = _ModuleCache(tmp_path / "file" / "modules.json")
    assert cache.read(SOURCES[0]) == parse_module(SOURCES[0])
    cache.save()
