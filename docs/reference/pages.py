"""The reference, written from the code whenever the site is built; a hook of MkDocs.

    parcel/cli                      -> reference/cli.md
    StudyConfig, and all it holds   -> reference/config.md
    model/eval/metrics/registry.py  -> reference/metrics.md
    pipelines/sources               -> reference/readers.md, reference/benchmarks.md
    flows/steps/registry.py         -> reference/artifacts.md
    flows/report/result_columns.py  -> reference/results.md
    flows/report/items_table.py     -> the same
    flows/study/choices_of_ours.py -> reference/paper.md, of two configs of the paper

Nothing of it is committed, so nothing of it can be out of date.
"""

import dataclasses
import enum
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

from flows.report.items_table import ITEM_COLUMNS
from flows.report.result_columns import AGGREGATE_COLUMNS, CELL_COLUMNS, ResultColumn
from flows.steps.registry import KINDS
from flows.study.choices_of_ours import choices_of_ours
from flows.study.load import load
from flows.study.study import StudyConfig
from infra.store.digest import NOT_IDENTITY
from infra.store.manifest import Manifest
from model.eval.metrics.registry import METRICS
from parcel.cli.main import app
from pipelines.sources.registry import BENCHMARKS, SOURCES, reader_module


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to those of `docs/`: MkDocs calls this."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=page()))
    return files


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Returns a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def cli_page() -> str:
    """Returns every command with its arguments, options and example."""
    root: Any = typer.main.get_command(app)
    parts = ["# Commands\n\n", f"{root.help}\n\n"]
    parts.append(
        "Exit code 0: done; 1: the work failed; 2: the request was wrong. An error is one line; "
        "`parcel --debug COMMAND` shows the traceback. "
        "`PARCEL_STORE` says once what `--store` says each time.\n"
    )
    told: dict[tuple[Any, ...], str] = {}
    for name, command in leaves(root):
        parts += [f"\n## parcel {name}\n", f"{prose(command.help)}\n\n"]
        if command.epilog:
            parts.append(f"```sh\n{command.epilog.removeprefix('Example: ')}\n```\n\n")
        rows = [_parameter(parameter) for parameter in command.params]
        first = told.setdefault(tuple(rows), name)
        if first != name:
            parts.append(
                f"Arguments and options are those of [`parcel {first}`](#parcel-{first}).\n"
            )
        elif rows:
            parts.append(table(("argument or option", "is", "default"), rows))
    return "".join(parts)


def leaves(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields (words, command) of each command that does something, as `parcel --help` has them."""
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, inner in command.commands.items():
        if not inner.hidden:
            yield from leaves(inner, f"{name} {word}".strip())


def _parameter(parameter: Any) -> tuple[str, str, str]:
    default = parameter.default
    said = "" if default in (None, False, "", ()) else f"`{getattr(default, 'value', default)}`"
    if not parameter.opts[0].startswith("-"):
        name = parameter.metavar or parameter.name.upper()
    elif getattr(parameter, "is_flag", False):
        name = parameter.opts[0]
    else:
        name = f"{parameter.opts[0]} {_value(parameter)}"
    return f"`{name}`", parameter.help or "", "needed" if parameter.required else said


def _value(parameter: Any) -> str:
    """Returns the placeholder of an option's value: its choices, its metavar or its type."""
    kind = parameter.type_descriptor.annotation
    if typing.get_origin(kind) is typing.Literal:
        return "|".join(map(str, typing.get_args(kind)))
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(choice.value) for choice in kind)
    inner = (*typing.get_args(kind), kind)[0]
    return parameter.metavar or {int: "N", float: "X"}.get(inner, "TEXT")


def config_page() -> str:
    """Returns every key of a study's config, a table for each group of keys."""
    parts = ["# Config keys\n\n"]
    parts.append(
        "A config is a YAML file; on the command line any key is `key.path=value`. An unknown key "
        "is refused. `base: demo` or `base: FILE.yaml` takes another config first. A key "
        "with `no` under identity says where or how often something happens: it is no part of "
        "[a step's identity](../explanation/reproducing.md#identity). `N` stands for the number of "
        "an entry, `NAME` for its name.\n"
    )
    for cls, paths in config_classes().items():
        title = f"`{paths[0]}`" if paths[0] else "The study"
        parts.append(f"\n## {title}\n")
        if len(paths) > 1:
            parts.append(f"Also {', '.join(f'`{path}`' for path in paths[1:])}.\n\n")
        parts.append(f"{first_paragraph(cls)}\n\n")
        meanings = attributes(cls)
        rows = []
        for field in dataclasses.fields(cls):
            outside = "no" if field.metadata.get("identity") == NOT_IDENTITY["identity"] else ""
            name = f"`{field.name}`"
            rows.append((name, f"`{default_of(field)}`", outside, meanings.get(field.name, "")))
        parts.append(table(("key", "default", "identity", "is"), rows))
    return "".join(parts)


def config_classes() -> dict[type, list[str]]:
    """Returns each dataclass of a config -> the key paths where it stands, outermost first."""
    found: dict[type, list[str]] = {}
    waiting: list[tuple[type, str]] = [(StudyConfig, "")]
    while waiting:
        cls, path = waiting.pop(0)
        known = found.setdefault(cls, [])
        # Stage 2 and other resolutions hold again what the study holds.
        if re.sub(r"^(stage2|stages\.N\.resolution)\.", "", path) in known:
            continue
        known.append(path)
        for name, hint in typing.get_type_hints(cls).items():
            for inner, star in _dataclasses_in(hint):
                below = f"{path}.{name}{star}".lstrip(".")
                waiting.append((inner, below))
    return found


def _dataclasses_in(hint: Any, star: str = "") -> Iterator[tuple[type, str]]:
    """Yields (dataclass, what a path has after the field's name) of a type."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        yield hint, star
        return
    origin = typing.get_origin(hint)
    inner = star + {dict: ".NAME", tuple: ".N"}.get(origin, "") if origin else star
    for argument in typing.get_args(hint):
        yield from _dataclasses_in(argument, inner)


def default_of(field: "dataclasses.Field[Any]") -> str:
    """Returns a field's default as YAML would have it; "…" for a group, "needed" for none."""
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is not dataclasses.MISSING:
        value = field.default
    else:
        return "needed"
    if dataclasses.is_dataclass(value):
        return "…"
    if isinstance(value, tuple):
        return "[…]" if any(map(dataclasses.is_dataclass, value)) else str(list(value))
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value) or '""'


def attributes(cls: type) -> dict[str, str]:
    """Returns name -> meaning of the "Attributes:" of a class, as Google's style has them."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):  # A class describes only the fields that it adds.
        text = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.search(r"Attributes:\n(.*?)(?:\n\n|\Z)", text, re.DOTALL)
        entries = re.split(r"\n  (?=\S)", f"\n{section[1]}")[1:] if section else []
        for entry in entries:
            names, _, meaning = entry.partition(": ")
            found |= dict.fromkeys(names.split(", "), " ".join(meaning.split()))
    return found


def first_paragraph(thing: Any) -> str:
    """Returns the first paragraph of a docstring, on one line."""
    return prose((inspect.getdoc(thing) or "").partition("\n\n")[0])


def prose(text: str | None) -> str:
    """Returns a docstring's paragraphs as Markdown."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", (text or "").strip())


def metrics_page() -> str:
    """Returns every metric, and every benchmark with the metric that scores it."""
    rows = []
    for name, metric in METRICS.items():
        said = inspect.getdoc(metric.score) or ""
        module = importlib.import_module(metric.score.__module__)
        source = re.search(r"Source: (.*?)(?:\n\n|\Z)", f"{said}\n\n{module.__doc__}", re.DOTALL)
        mean = f"mean over `{metric.mean_over}`" if metric.mean_over else "mean over items"
        path = f"`{metric.score.__module__.replace('.', '/')}.py`"
        rows.append((
            f"`{name}`", first_paragraph(metric.score), mean, ", ".join(metric.by),
            prose(source[1]) if source else "", path,
        ))  # fmt: skip
    return (
        "# Metrics\n\nWhose rule each is: [rules](../howto/results.md#rules). "
        "[`parcel model score`](cli.md#parcel-model-score) takes any of them, or "
        "[one of your own](../howto/own_data.md#a-metric-of-your-own).\n\n"
        + table(("metric", "of one item", "score", "parts told", "source", "code"), rows)
    )


def readers_page() -> str:
    """Returns every reader."""
    # From the registry, so a new reader is documented when it is registered.
    readers = [
        (
            f"`{name}`", f"`{spec.folder}/`" if spec.folder else "", _some(spec.splits),
            spec.publisher, f"`{reader_module(name).replace('.', '/')}.py`",
        )
        for name, spec in SOURCES.items()
    ]  # fmt: skip
    return (
        "# Readers\n\nWhat lies in these folders, and what becomes of it: "
        "[data](../howto/data.md). Those of a benchmark: [benchmarks](benchmarks.md).\n\n"
        + table(("reader", "folder below `data_root`", "splits", "published at", "code"), readers)
    )


def benchmarks_page() -> str:
    """Returns every constant of every benchmark, to be compared with the paper's appendix."""
    #   Benchmark        prompt, splits, metric, …    a line for each benchmark
    #   ResultRow        titles, split, size, …       a line for each of its `rows`
    #   FinetuneRecipe   batch, rates, epochs, …      a line for each resolution of its `recipes`
    every = BENCHMARKS.values()
    recipes = [((b.name, f"{px}"), recipe) for b in every for px, recipe in b.recipes.items()]
    return (
        "# Benchmarks\n\nEvery constant of the published benchmarks, to be read beside the paper's "
        "appendix. An empty cell is no, none or 0. What a study states in `transfers.NAME` comes "
        "first. The code of each is beside its [reader](readers.md).\n\n"
        "## Prompt, splits and metric\n"
        + _constants(("benchmark",), [((b.name,), b) for b in every], {"name", "rows", "recipes"})
        + "\n## Rows of the paper's tables\n"
        + _constants(("benchmark",), [((b.name,), row) for b in every for row in b.rows])
        + "\n## Fine-tuning\n"
        + _constants(("benchmark", "side of the images"), recipes)
    )


def _constants(
    heads: tuple[str, ...],
    things: list[tuple[tuple[str, ...], Any]],
    left_out: Collection[str] = (),
) -> str:
    """Returns a table with a column for each field of (name, dataclass), and what each field is."""
    meanings = attributes(type(things[0][1]))
    fields = [name for name in things[0][1].__dataclass_fields__ if name not in left_out]
    rows = [
        (*lead, *(_constant(getattr(thing, name)) for name in fields)) for lead, thing in things
    ]
    said = "".join(f"- `{name}`: {meanings[name]}\n" for name in fields)
    return f"{table((*heads, *fields), rows)}\n{said}"


def _constant(value: Any) -> str:
    """Returns a value as a cell of a table; line breaks are shown as escapes."""
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    text = repr(value)[1:-1] if isinstance(value, str) else str(value)
    return f"`{text}`" if value else ""


def _some(names: tuple[str, ...]) -> str:
    """Returns names in a row; of many the first, and how many there are."""
    return ", ".join(names if len(names) <= 9 else (*names[:9], f"… ({len(names)})"))


def artifacts_page() -> str:
    """Returns every kind of artifact, what lies in it, and what a manifest says."""
    parts = ["# Artifacts\n\n"]
    parts.append(
        "Each step of a study leaves one artifact of its kind in the store: these files, and a "
        "manifest. `parcel lineage show KEY` prints the manifest. What a key is made of: "
        "[identity](../explanation/reproducing.md).\n"
    )
    for name, kind in KINDS.items():
        module = importlib.import_module(kind.make.__module__)
        parts += [f"\n## {name}\n", f"{prose((module.__doc__ or '').partition(chr(10) * 2)[0])}\n"]
        if kind.libraries:
            listed = ", ".join(f"`{library}`" for library in kind.libraries)
            which = ", where a step can use them" if kind.unused_libraries else ""
            parts.append(f"Versions that are part of its identity{which}: {listed}.\n")
        rows = [(f"`{file}`", said) for file, said in kind.files.items()]
        parts.append("\n" + table(("file", "holds"), rows))
    meanings = [(f"`{name}`", said) for name, said in attributes(Manifest).items()]
    parts.append("\n## The manifest\n" + table(("field", "is"), meanings))
    return "".join(parts)


def results_page() -> str:
    """Returns every column of the results: its name in the files, its heading, and what it is."""

    def rows(columns: Iterable[ResultColumn[Any]]) -> list[tuple[str, ...]]:
        return [(f"`{c.name}`", c.heading.format("64"), c.meaning) for c in columns]

    head = ("in the files", "in the tables", "is")
    return (
        "# Columns of the results\n\nNames are those in `results.csv` and `results.json`, headings "
        "those of the Markdown and of the pages, here at 64 tokens. How to read them: "
        "[results](../howto/results.md).\n\n## Of a method on a benchmark\n"
        + table(head, rows(CELL_COLUMNS))
        + "\n## Over benchmarks\n"
        + table(head, rows(AGGREGATE_COLUMNS))
        + "\n## Of an item\nThe Parquet file of `parcel results --format items` has a row for each "
        "benchmark, method, budget, seed and item:\n\n"
        + table(
            ("column", "type", "is"),
            [(f"`{name}`", kind, said) for name, (kind, said) in ITEM_COLUMNS.items()],
        )
    )


def paper_page() -> str:
    """Returns the page of our own choices in the paper's studies, its ablations among them."""
    configs = Path(__file__).parents[2] / "configs"
    study, ablations = (
        [*choices_of_ours(load(configs / f"{name}.yaml"))]
        for name in ("paper_448", "paper_ablations")
    )
    # What both have is said once, with the values of the first.
    said = {why for _, why in study}
    rows = [(f"`{subject}`", why) for subject, why in study]
    of_ablations = [(f"`{subject}`", why) for subject, why in ablations if why not in said]
    return (
        "# What is ours in the paper's study\n\n"
        "`configs/paper_224.yaml` and `configs/paper_448.yaml` follow the paper, and PaliGemma and "
        "PaliGemma 2 where it refers to them. Below is all in which they do not, or in which none "
        "of the three says what to do; other values are theirs. `parcel run configs/paper_448.yaml "
        "--explain` prints the same list, each line with `[ours]`, of any study that states "
        "`paper: true`, with the values of that study: what you set as the paper has it is no "
        "longer on it. Other runs say nothing of this.\n\n"
        + table(("keys and values", "why"), rows)
        + "\nOf `configs/paper_ablations.yaml` these, too:\n\n"
        + table(("keys and values", "why"), of_ablations)
    )


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_page,
    "config": config_page,
    "metrics": metrics_page,
    "readers": readers_page,
    "benchmarks": benchmarks_page,
    "artifacts": artifacts_page,
    "results": results_page,
    "paper": paper_page,
}
