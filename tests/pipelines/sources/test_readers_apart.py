"""The code that makes a dataset holds its own reader, and none of another family."""

import ast
import functools
import sys
from pathlib import Path

import pytest

import pipelines
from pipelines.sources.reading.corpus import WEB_TASKS
from pipelines.sources.registry import BENCHMARKS, SOURCES, reader_module, source_spec
from pipelines.sources.web.tasks import TASKS

ROOT = Path(pipelines.__file__).parent.parent
REGISTRY = "pipelines.sources.registry"
FAMILIES = sorted(
    path.parent.name
    for path in (ROOT / "pipelines/sources").glob("*/__init__.py")
    if path.parent.name != "reading"
)


def file_of(module: str) -> Path | None:
    """Returns the file of a module of the pipelines."""
    stem = ROOT / module.replace(".", "/")
    return next((p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None)


def module_of(name: str):
    return sys.modules[name]


@functools.cache
def imports_of(module: str) -> set[str]:
    """Returns the modules of the pipelines that a module imports, within functions as well."""
    path = file_of(module)
    assert path is not None
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if name.startswith("pipelines.") and file_of(name)}


def closure(*modules: str) -> set[str]:
    """Returns everything that is imported from `modules`, except through the registry."""
    found: set[str] = set()
    todo = list(modules)
    while todo:
        module = todo.pop()
        if module not in found and module != REGISTRY:
            found.add(module)
            todo += imports_of(module)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_closure_holds_the_own_reader_and_no_other_family(name: str):
    reader = reader_module(name)
    family = reader.split(".")[2]
    held = closure("pipelines.prepare.run", reader)
    assert reader in held
    others = [other for other in FAMILIES if other != family]
    assert not [m for m in held if m.split(".")[1:3] in [["sources", o] for o in others]]


def test_closure_holds_what_makes_pixels_and_records():
    held = closure("pipelines.prepare.run", reader_module("msvd_qa"))
    for room in ("video.child", "video.decoders", "images.square", "transforms.render"):
        assert f"pipelines.{room}" in held
    for module in (
        "prepare.graph",
        "prepare.shards",
        "sources.reading.spec",
        "sources.reading.slicing",
    ):
        assert f"pipelines.{module}" in held
    assert "pipelines.benchmarks.row" in held


@pytest.mark.slow
def test_an_edit_of_one_reader_is_in_no_closure_but_its_own():
    edited = reader_module("refcoco")
    touched = {n for n in SOURCES if edited in closure("pipelines.prepare.run", reader_module(n))}
    assert touched == {"refcoco"}


def places_clips(module: str) -> bool:
    """Whether a module refers to clips: by `video=…` in a call."""
    path = file_of(module)
    assert path is not None
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return any(keyword.arg == "video" for call in calls for keyword in call.keywords)


def test_sources_without_clips_have_readers_that_place_none():
    places = {n for n in SOURCES if any(map(places_clips, closure(reader_module(n))))}
    # One module reads folders of pictures and of clips.
    assert places - {"images"} == {name for name, spec in SOURCES.items() if spec.has_clips}
    assert not SOURCES["images"].has_clips


def test_what_the_registry_says_of_a_source_is_its_readers():
    for name in SOURCES:
        assert any(spec is source_spec(name) for spec in module_of(reader_module(name)).SOURCES)


def test_benchmarks_are_declared_beside_their_readers():
    for name, benchmark in BENCHMARKS.items():
        declared = vars(module_of(reader_module(name))).values()
        assert any(value is benchmark for value in declared), name


def test_no_source_of_that_name():
    with pytest.raises(ValueError, match=r"source .*activitynet_cap.*got 'nope'"):
        reader_module("nope")


def test_pipelines_import_nothing_dynamically():
    for path in (ROOT / "pipelines").rglob("*.py"):
        names = {
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Name | ast.Attribute)
        }
        assert not names & {"importlib", "__import__", "import_module", "runpy"}, path


def test_every_kind_of_web_record_has_a_maker():
    assert tuple(TASKS) == WEB_TASKS
