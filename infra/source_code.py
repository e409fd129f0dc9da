"""The code of a step: every module its function can reach, as syntax trees.

    model/train/loop.py     import model.train.step          a comment is edited     same digest
    model/train/step.py     from model import vlm            a constant is edited    other digest
    model/analysis/…        reached by nobody above          anything is edited      same digest

Starting at the function's module, all imports are followed, also those inside functions, and so
are strings that spell a module's name (`python -m pipelines.video.child`). Two things are no part
of a step's code: `infra`, which moves bytes and decides none, and the modules that run every step,
which `flows.steps.code` names. Registries, which know every reader, connector or metric, are not
entered; a step's code goes on with the one that its config names (`flows.steps.registry`). Relative
imports and imports by a computed name are refused, since the digest could not cover what they bring
in.

A reader, metric or connector of the user's own (`flows.steps.user_code`) is in the folder `own` of
a tree, and is followed like the rest: own/my_metric.py is the module `my_metric`. Its imports may
be relative.

A digest is the same under every Python that the project supports, so that machines with different
ones can share a store: `_Stripped` and `_canonical_text` remove what the versions disagree on.
"""

import ast
import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from infra.store.digest import value_sha256

ROOTS = ("flows", "model", "pipelines")
"""Packages whose modules can be part of a step's code."""

USER_CODE = "own"
"""Folder of a tree that holds the user's own code."""

_IMPORTERS = {"import_module", "__import__", "spec_from_file_location", "run_module", "run_path"}
_DYNAMIC = _IMPORTERS | {"exec", "eval"}
"""Names that code may not mention; `eval` after a dot is allowed, as in `model.eval`."""


class DynamicImportError(ValueError):
    """Code that a step reaches imports something by a computed name."""


@dataclasses.dataclass(frozen=True)
class Module:
    """One source file, as far as a step's code is concerned.

    Attributes:
      digest: digest of its syntax tree without comments, formatting and docstrings [hex].
      names: dotted names that it imports or spells in strings, and "__file__" if it uses that. Not
        all are modules, and many belong to libraries.
      relative: (line, level, module, names) of each relative import.
      dynamic: "line: call" of an import by a computed name; "" if there is none.
    """

    digest: str
    names: frozenset[str]
    relative: tuple[tuple[int, int, str, tuple[str, ...]], ...]
    dynamic: str

    def names_in(self, module: str, path: str) -> set[str]:
        """Returns the names for a module of the user's own, with relative imports resolved.

        Args:
          module: its dotted name; its enclosing packages are imported with it, so they are added.
          path: path of its file, which says whether it is a package.
        """
        parts = module.split(".")
        package = parts if path.endswith("/__init__.py") else parts[:-1]
        names = {*self.names, *(".".join(parts[:n]) for n in range(1, len(parts)))}
        for _, level, below, aliases in self.relative:
            base = [*package[: len(package) - level + 1], *([below] if below else [])]
            names |= {".".join(base), *(".".join([*base, alias]) for alias in aliases)}
        return names


class Tree:
    """The source files of a checkout, or of a run whose sources a store kept.

    Args:
      files: path below the checkout, such as "model/vlm.py" -> its bytes.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files
        self._paths = {
            _module_name_of_path(path): path
            for path in files
            if path.endswith(".py") and path.partition("/")[0] in (*ROOTS, USER_CODE)
        }

    def __contains__(self, module: str) -> bool:
        return module in self._paths

    def path(self, module: str) -> str:
        """Returns the path of a module's file."""
        return self._paths[module]

    def text(self, module: str) -> bytes:
        """Returns the source of a module."""
        return self.files[self._paths[module]]

    def reach(
        self, modules: Iterable[str], *, stop: Iterable[str] = (), outside: Iterable[str] = ()
    ) -> dict[str, str]:
        """Returns module -> digest for every module that some modules can reach.

        Args:
          modules: the modules to start from.
          stop: modules that are not entered, such as registries that know every reader; but what
            the user's own code imports is, since it may use anything in them.
          outside: modules that are never entered.

        Raises:
          DynamicImportError: if any of them imports by a computed name.
        """
        # A name that no file has, such as a library's, ends a path; so does a closed module, until
        # the user's code imports it.
        closed = {*stop, *outside}
        digests: dict[str, str] = {}
        pending = [*modules]
        while pending:
            name = pending.pop()
            if name in digests or name in closed or name not in self._paths:
                continue
            module, path = read_module(self.text(name)), self._paths[name]
            dynamic = module.dynamic
            if module.relative and not self.is_user_code(name):
                line, _, _, aliases = module.relative[0]
                dynamic = f"{line}: {aliases[0]}"
            if dynamic:
                raise DynamicImportError(
                    f"{name} line {dynamic} imports by a computed name, so the code of a "
                    f"step that reaches it is not known; import the module by its name."
                )
            digests[name] = module.digest
            if self.is_user_code(name):
                names = module.names_in(name, path)
                closed -= names - {*outside}
                pending += names
            else:
                pending += module.names
        _CACHE.save()
        return dict(sorted(digests.items()))

    def is_user_code(self, module: str) -> bool:
        """Whether a module is the user's own code."""
        return self._paths.get(module, "").startswith(f"{USER_CODE}/")


def code_sha256(modules: Mapping[str, str]) -> str:
    """Returns one digest over the modules that `Tree.reach` found [hex]."""
    return value_sha256(dict(modules))


_user_files: dict[str, bytes] = {}
"""Path in a tree -> bytes, for the user's own code that this process imports."""


def add_user_code(files: Mapping[str, bytes]) -> None:
    """Adds the user's own code to the sources of this process; known paths keep their bytes."""
    _user_files.update({path: data for path, data in files.items() if path not in _user_files})
    checkout.cache_clear()


@functools.cache
def checkout() -> Tree:
    """Returns the sources as this process first read them."""
    return Tree({**_disk_files_once(), **_user_files})


def read_checkout() -> Tree:
    """Returns the sources as they are on disk now; the user's own as they were imported."""
    return Tree({**_on_disk(), **_user_files})


# Cached apart from `checkout`: when `add_user_code` clears that one, the disk is not read again.
@functools.cache
def _disk_files_once() -> dict[str, bytes]:
    return _on_disk()


def _on_disk() -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for root in (*ROOTS, "infra"):
        spec = importlib.util.find_spec(root)
        assert spec is not None
        assert spec.origin is not None
        folder = Path(spec.origin).parent
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".yaml"):
                files[f"{root}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def changed_definitions(old: Tree, new: Tree, modules: Iterable[str]) -> list[str]:
    """Returns the names of functions, classes and constants that differ, or that one tree lacks.

    A difference outside any definition is listed under the module's own name.

    Args:
      old: the earlier tree.
      new: the later tree.
      modules: the modules to compare.
    """
    changed: list[str] = []
    for module in sorted(modules):
        texts = [tree.text(module) if module in tree else b"" for tree in (old, new)]
        if texts[0] == texts[1]:
            continue
        old_definitions, new_definitions = (_definition_texts(text) for text in texts)
        names = [
            n
            for n in old_definitions | new_definitions
            if old_definitions.get(n) != new_definitions.get(n)
        ]
        changed += [f"{module}.{name}" if name else module for name in names]
    return changed


def _module_name_of_path(path: str) -> str:
    path = path.removeprefix(f"{USER_CODE}/")
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


_PARSING = threading.Lock()
"""Held to parse: in Python 3.11 two threads fail in `ast.parse` ("recursion depth mismatch")."""
_TRIES = 20
"""Attempts at one parse: other libraries parse in threads of theirs, without this lock."""


class _ModuleCache:
    """Modules of source texts that some process on this machine has parsed, in a JSON file.

    Parsing all that the steps of a study reach takes 2 s of processor, and every command needs it.
    The file lies with the compiled modules, as Python's own results of parsing do, and may be
    deleted at any time. Where it cannot be written, each process parses for itself.

        {"5f1c…": ["a90b…", ["jax", "model.vlm"], [], ""], …}     sha256 of the text -> `Module`

    Args:
      path: the file. Its name has a digest of this file, so that another rule reads another one.
    """

    LIMIT = 8192
    """Texts that it holds at most; those that were added first go first. A checkout has 600."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._modules: dict[str, Module] | None = None
        self._is_saved = True

    def read(self, text: bytes) -> Module:
        """Returns the module of a text; see `parse_module`."""
        sha256 = hashlib.sha256(text).hexdigest()
        with self._lock:
            if self._modules is None:
                self._modules = self._load_module_cache()
            if sha256 not in self._modules:
                self._modules[sha256] = parse_module(text)
                self._is_saved = False
            return self._modules[sha256]

    def save(self) -> None:
        """Writes what this process has parsed beside what others have written meanwhile."""
        with self._lock:
            if self._modules is None or self._is_saved:
                return
            self._is_saved = True  # Where nothing can be written, too: it would fail each time.
            newest = [*(self._load_module_cache() | self._modules).items()][-self.LIMIT :]
            rows = {
                sha256: [module.digest, sorted(module.names), module.relative, module.dynamic]
                for sha256, module in newest
            }
            with contextlib.suppress(OSError):
                self._path.parent.mkdir(exist_ok=True)
                # Replaced in one step: no process reads half a file.
                partial = self._path.with_suffix(f".{os.getpid()}")
                partial.write_text(json.dumps(rows), encoding="utf-8")
                partial.replace(self._path)

    def _load_module_cache(self) -> dict[str, Module]:
        # Whatever is wrong with the file, its texts are parsed again.
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
            rows = json.loads(self._path.read_text(encoding="utf-8"))
            return {
                sha256: Module(
                    digest,
                    frozenset(names),
                    tuple(
                        (line, level, below, tuple(each)) for line, level, below, each in relative
                    ),
                    dynamic,
                )
                for sha256, (digest, names, relative, dynamic) in rows.items()
            }
        return {}


_RULE = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
_CACHE = _ModuleCache(Path(__file__).parent / "__pycache__" / f"modules-{_RULE}.json")


@functools.lru_cache(maxsize=4096)
def read_module(text: bytes) -> Module:
    """Returns the digest and the imports of a source file, parsed once on a machine."""
    return _CACHE.read(text)


def parse_module(text: bytes) -> Module:
    """Returns the digest and the imports of a source file.

    Raises:
      SyntaxError: if it is not Python.
    """
    tree = _stripped_tree(text)
    names: set[str] = set()
    relative: list[tuple[int, int, str, tuple[str, ...]]] = []
    dynamic = ""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names.update(alias.name for alias in aliases)
            case ast.ImportFrom(names=aliases) if _IMPORTERS & {alias.name for alias in aliases}:
                dynamic = f"{node.lineno}: {aliases[0].name}"
            case ast.ImportFrom(level=level, module=below, names=aliases) if level:
                alias_names = tuple(alias.name for alias in aliases)
                relative.append((node.lineno, level, below or "", alias_names))
            case ast.ImportFrom(module=str(package), names=aliases):
                names.update((package, *(f"{package}.{alias.name}" for alias in aliases)))
            # Any dotted string may be a module's name; `Tree.reach` ignores those that are not.
            case ast.Constant(value=str(word)) if "." in word:
                names.add(word)
            case ast.Name(id="__file__"):
                names.add("__file__")
            case ast.Name(id=function) if function in _DYNAMIC:
                dynamic = f"{node.lineno}: {function}"
            case ast.Attribute(attr=function) if function in _IMPORTERS:
                dynamic = f"{node.lineno}: {function}"
    digest = hashlib.sha256(_canonical_text(tree).encode()).hexdigest()
    return Module(digest, frozenset(names), tuple(relative), dynamic)


def _stripped_tree(text: bytes) -> ast.Module:
    """Returns a syntax tree without docstrings; comments and formatting are not in it anyway.

    Every string that is a statement is dropped, also one that documents an attribute: none has an
    effect. f-strings are brought into one form.
    """
    with _PARSING:
        return _Stripped().visit(_parse_source(text))


def _parse_source(text: bytes) -> ast.Module:
    for _ in range(_TRIES):
        with contextlib.suppress(SystemError):
            return ast.parse(text)
    return ast.parse(text)


class _Stripped(ast.NodeTransformer):
    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(body := getattr(node, "body", None), list) and not body:
            node.body = [ast.Pass()]  # type: ignore[attr-defined]
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        alone = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if alone else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        # Python 3.12 adds empty texts to the format specifications of f-strings.
        node.values = [part for part in node.values if not _is_empty_text(part)]
        return self.generic_visit(node)


def _is_empty_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == ""


def _canonical_text(node: object) -> str:
    """Returns the text of a syntax tree, the same under every supported Python.

    `ast.dump` and `ast.unparse` write other texts in other versions.

        f(1)    Call(args=[Constant(0x1)],func=Name(ctx=Load(),id='f'))

    Args:
      node: a node, or what a field of one holds: a list, a name, a number or None.
    """
    if isinstance(node, list):
        return f"[{','.join(map(_canonical_text, node))}]"
    if isinstance(node, ast.Constant):  # Without its `kind`: u"a" is "a".
        return f"Constant({_canonical_text(node.value)})"
    if isinstance(node, ast.AST):
        # Empty fields are left out: Python 3.12 and 3.13 have fields that 3.11 lacks.
        values = {name: getattr(node, name, None) for name in sorted(node._fields)}
        fields = [
            f"{n}={_canonical_text(v)}" for n, v in values.items() if v is not None and v != []
        ]
        return f"{type(node).__name__}({','.join(fields)})"
    if type(node) is int:
        return hex(node)  # Python refuses to write very long integers in decimals.
    return ascii(node)  # `repr` shows the characters that a version's Unicode table knows.


_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definition_texts(text: bytes) -> dict[str, str]:
    """Returns qualified name -> text of functions, classes and constants; "" -> the rest."""

    def walk(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
        statements = [
            node for node in body if not isinstance(node, _Scope | ast.Assign | ast.AnnAssign)
        ]
        yield prefix.rstrip("."), _canonical_text(statements)
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield f"{prefix}{', '.join(map(ast.unparse, targets))}", _canonical_text(node)
            elif isinstance(node, ast.ClassDef):
                head = [*node.bases, *node.decorator_list, *(k.value for k in node.keywords)]
                yield f"{prefix}{node.name} (class)", _canonical_text(head)
                yield from walk(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, _Scope):
                yield f"{prefix}{node.name}", _canonical_text(node)

    definitions: dict[str, str] = {}
    for name, source in walk(_stripped_tree(text).body, ""):
        # A name may come twice, say as a property and its setter.
        definitions[name] = f"{definitions[name]}\n{source}" if name in definitions else source
    return definitions
