"""The user's own readers, metrics and connectors: code that a step runs but no checkout holds.

    metric: ./my_metric.py:f1       one file, and the files beside it that it imports
    metric: my_package.scores:f1    likewise for a package on Python's path, say a checkout
    metric: soft_f1                 an entry point, or a module, of an installed distribution
    methods: [./mine.py:Ripple]     a class, in any of these ways

The first two join the sources of the run, below `own/`: their digest is part of the step's code,
the store keeps them, and workers import that copy, whatever is edited meanwhile. The third must be
installed on every node, and its version belongs to the step's identity, as Pillow's does: a version
does not change, and its compiled parts could not be sent. The versions of the distributions that
the first two import belong to the identity, too.
"""

import contextlib
import dataclasses
import functools
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flows.steps.code import reach
from infra.processes.module import see_new_files
from infra.references import (
    add_sources,
    entry_points,
    file_reference,
    load_reference,
    module_reference,
)
from infra.source_code import ROOTS, USER_CODE, add_user_code, checkout, read_checkout, read_module
from infra.store.environment import RECORDED_PACKAGES
from pipelines.sources.own_source import OwnSource

_OURS = {*ROOTS, "infra", "parcel"}
_INSTALLED = {"site-packages", "dist-packages"}
"""Folders that only installers write to."""


@functools.cache
def canonical_reference(reference: str, group: str) -> str:
    """Makes a function that a config names importable here, and returns its "module:name".

    Args:
      reference: "file.py:name", "module:name" or the name of an entry point.
      group: group of entry points to look names up in.

    Raises:
      ValueError: if there is no such function, or its code cannot be part of a step; in one line.
    """
    # The ways that the head of this file lists. Each ends in a name that `import` understands here,
    # and, for a file or a folder, in sources that workers get a copy of.
    reference = entry_points(group).get(reference, reference)
    if file := file_reference(reference):
        path, name = file[0].absolute(), file[1]
        _add_user_module(path.parent, _user_module_name(path))
        canonical = f"{path.stem}:{name}"
    elif module_and_name := module_reference(reference):
        canonical, (module, _) = reference, module_and_name
        # An installed package is not copied: `_module_folder` knows no folder for it.
        top = module.partition(".")[0]
        if importlib.util.find_spec(top) is None:
            _append_to_path(Path.cwd())  # A module of the folder in which the command is given.
        if top not in _OURS and (folder := _module_folder(top)):
            _add_user_module(folder, module)
    else:
        raise ValueError(
            f"a function must be named as file.py:function or module:function, got {reference!r}."
        )
    if not callable(module_and_name := load_reference(canonical)) and not hasattr(
        module_and_name, "score"
    ):
        raise ValueError(f"{canonical} must be a function or a class, got {module_and_name!r:.60}.")
    return canonical


def install_user_code(files: Mapping[str, bytes]) -> None:
    """Makes this process import the user's own code from a run's source tree."""
    user_files = {path: files[path] for path in files if path.startswith(f"{USER_CODE}/")}
    if not user_files.keys() <= checkout().files.keys():
        add_sources(_relative_paths(user_files))
        add_user_code(user_files)


def has_user_code(files: Mapping[str, bytes]) -> bool:
    """Returns whether this process has the same user's own code as a run's source tree."""
    sources = read_checkout().files
    return all(
        sources.get(path) == files[path] for path in files if path.startswith(f"{USER_CODE}/")
    )


def with_user_code(reader: str | OwnSource) -> str | OwnSource:
    """Returns a reader that can be sent to workers: with its code if it is the user's function."""
    if isinstance(reader, str) or (function := module_reference(reader.reader)) is None:
        return reader
    files = _relative_paths(user_files_of([function[0]]))
    return dataclasses.replace(reader, code=tuple(sorted(files.items())))


def user_files_of(modules: Iterable[str]) -> dict[str, bytes]:
    """Returns path -> bytes of the user's files that modules reach, for `install_user_code`."""
    tree = checkout()
    return {
        tree.path(name): tree.text(name) for name in reach(tree, modules) if tree.is_user_code(name)
    }


def reader_of(spec: Mapping[str, Any]) -> str:
    """Returns the name of the reader, or its function, in a step's config as plain values."""
    reader = spec["reader"]
    return reader if isinstance(reader, str) else reader["reader"]


def _relative_paths(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix(f"{USER_CODE}/"): data for path, data in files.items()}


@functools.cache
def library_versions(module: str) -> dict[str, str]:
    """Returns name -> version of the distributions of a module and of what its code imports.

    Distributions that every manifest records anyway, such as NumPy, are left out.
    """
    tree = checkout()
    tops = {module.partition(".")[0]}
    for module_name in filter(tree.is_user_code, reach(tree, [module])):
        tops |= {name.partition(".")[0] for name in read_module(tree.text(module_name)).names}
    distributions = importlib.metadata.packages_distributions()
    distributions_used = {name for top in tops - _OURS for name in distributions.get(top, ())}
    return {
        name: importlib.metadata.version(name)
        for name in sorted(distributions_used)
        if name not in RECORDED_PACKAGES
    }


def _user_module_name(path: Path) -> str:
    if not path.is_file():
        raise ValueError(f"there is no file {path}.")
    if not path.stem.isidentifier():
        raise ValueError(f"{path} must have the name of a module, letters and underscores.")
    return path.stem


def _module_folder(top: str) -> Path | None:
    """Returns the folder that holds a top-level module; None if it is installed or not found."""
    spec = None
    with contextlib.suppress(ValueError):  # `__main__` has no spec.
        spec = importlib.util.find_spec(top)
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        return None
    path = Path(spec.origin)
    installed = bool(_INSTALLED & set(path.parts)) or top in sys.stdlib_module_names
    return None if installed else path.parents[path.name == "__init__.py"]


def _append_to_path(folder: Path) -> None:
    """Has Python look for modules in a folder, too, after all others: it hides none of ours."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        see_new_files()


def _add_user_module(folder: Path, module: str) -> None:
    """Adds a module, and all that it imports from the same folder, to this process's sources.

    Raises:
      ValueError: if Python would import another module of that name, or one of them cannot be part
        of a step.
    """
    _append_to_path(folder)
    # A file `numbers.py` would import as Python's own `numbers`: refused, not guessed at.
    top = module.partition(".")[0]
    if _module_folder(top) != folder:
        spec = importlib.util.find_spec(top)
        raise ValueError(
            f"{folder / top} has the name of another module, {spec and spec.origin}; rename it."
        )
    files: dict[str, bytes] = {}
    # From the named module, follow imports for as long as they stay in its folder:
    #
    #   my_metric.py ─▶ my_words.py ─▶ numpy (installed: stop)
    #                └▶ model.eval.… (ours: stop, part of the checkout's tree)
    module_queue, visited = [module], set[str]()
    while module_queue:
        name = module_queue.pop()
        top = name.partition(".")[0]
        if name in visited or top in _OURS or not all(map(str.isidentifier, name.split("."))):
            continue
        visited.add(name)
        stem = folder / name.replace(".", "/")
        path = next(
            (p for p in (stem.with_suffix(".py"), stem / "__init__.py") if p.is_file()), None
        )
        if path is None or _module_folder(top) != folder:
            continue
        data = path.read_bytes()
        # Its place in the source tree of the run, which workers import from.
        place = f"{USER_CODE}/{path.relative_to(folder).as_posix()}"
        try:
            names = read_module(data).names_in(name, place)
        except SyntaxError as error:
            raise ValueError(f"{path} line {error.lineno} is not Python: {error.msg}.") from None
        if "__file__" in names:
            raise ValueError(
                f"{path} names __file__, and only Python files reach workers; put what it reads "
                f"beside it into a module, or into the rows' meta."
            )
        files[place] = data
        module_queue += names
    # Added only now: a folder with one file that is refused adds nothing.
    add_user_code(files)
    reach(checkout(), [module])  # Raises if its code cannot be determined.
