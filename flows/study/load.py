"""Loads a checked `StudyConfig` from a YAML file and `key.path=value` overrides."""

import contextlib
import copy
import difflib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.config.model_families import backbone_values, with_part_values
from flows.config.server_limits import check_served_path, served_path
from infra.errors import ConfigError, did_you_mean
from infra.references import file_reference
from infra.yaml_text import NO_YAML, YamlError, load_yaml
from pipelines.sources.registry import BENCHMARKS

_MAX_SHOWN = 80
"""Most of a value that an error shows [characters]."""

_MAX_BYTES = 2**20
"""Largest config [bytes]; a study of every benchmark has a tenth of that."""

DEMO = Path(__file__).with_name("demo.yaml")

_STUDIES = Path(__file__).parents[2] / "configs"
"""Studies of a checkout; an installed package has none."""

_SUFFIXES = (".yaml", ".yml")


def load(path: str | Path | None = None, overrides: Sequence[str] = ()):
    """Returns the study of a YAML file, or of the embedded demo, with overrides applied.

    A file may have `base: demo` or `base: other.yaml` (relative to its folder) and state only the
    differences; `transfers: {NAME: null}` drops a benchmark of the base, and so does an override.

    Args:
      path: the file; None takes the embedded demo.
      overrides: changes as "key.path=value" texts, with values in YAML.

    Raises:
      ConfigError: naming the file, the field, the value and what is accepted.
    """
    source = Path(path) if path is not None else DEMO
    return apply_overrides(
        read_study_file(source), overrides, source=str(path) if path is not None else "demo"
    )


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str], *, source: str):
    """Returns the `StudyConfig` of plain values, with overrides applied.

    Args:
      values: plain values of a study; they are not modified.
      overrides: as in `load`.
      source: name for the origin of the values in errors.

    Raises:
      ConfigError: as `load`.
    """
    # Overrides, then paths, then dropped benchmarks, then the types: each step needs the ones
    # before it, and only the last one knows what a key may hold.
    changed = copy.deepcopy(dict(values))
    for override in overrides:
        changed = with_part_values(changed)
        _apply_override(changed, override)
    _anchor_paths(changed, Path.cwd() / served_path(""))
    # A run's record holds, beside all values, those that were stated: the overrides join them.
    if statements := changed.get("statements"):
        for override in overrides:
            statements = with_part_values(statements)
            _apply_override(statements, override)
        _anchor_paths(statements, Path.cwd() / served_path(""))
        changed["statements"] = _without_dropped(statements, values["statements"], source=source)
    return check_config(_without_dropped(changed, values, source=source), source=source)


def check_config(values: dict[str, Any], *, source: str):
    """Returns the `StudyConfig` of plain values.

    Raises:
      ConfigError: as `load`.
    """
    import pydantic

    from flows.config.validation import config_adapter, first_problem, first_unbounded
    from flows.study.study import StudyConfig

    try:
        study = config_adapter(StudyConfig).validate_python(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{source}: {first_problem(error, StudyConfig)}") from None
    if problem := first_unbounded(study):
        raise ConfigError(f"{source}: {problem}")
    return study


def read_study_file(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Returns the values of a YAML file, merged over those of its base; not checked yet.

    Args:
      path: the file.
      above: files that have it as their base, directly or through others.

    Raises:
      ConfigError: if it cannot be read, is not a YAML mapping, or is its own base.
    """
    if path != DEMO:
        check_served_path("config", path)
    above = (*above, Path(os.path.realpath(path)))
    try:
        text = _read_text(path)
    except OSError as error:
        hint = _nearest_file(path) if isinstance(error, FileNotFoundError) else ""
        raise ConfigError(
            f"config must be a readable YAML file, got {path}: {error.strerror}{hint or '.'}"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8, {error.reason} at byte {error.start}.") from None
    try:
        values = load_yaml(text)
    except YamlError as error:
        where = f"{path}, line {error.line}" if error.line else path
        raise ConfigError(f"{where}: {error}") from None
    if values is None:
        raise ConfigError(
            f"{path} is empty: it must hold `key: value` lines; `base: demo` alone is a study."
        )
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold `key: value` lines, got {values!r:.{_MAX_SHOWN}}.")
    # Before the base is merged in: `./mine.py` means a file beside the YAML file that says so.
    _anchor_paths(values, path.parent)
    # The base is read the same way, with this file among those that must not come again.
    base = values.pop("base", None)
    below: dict[str, Any] = {}
    if base is not None:
        if "\0" in str(base):
            raise ConfigError(f"{path}: base must be a path, got {base!r:.{_MAX_SHOWN}}.")
        stated, base = base, DEMO if base == "demo" else path.parent / str(base)
        if not os.path.lexists(base):
            raise ConfigError(
                f"{path}: base must be demo or a YAML file, got {stated!r:.{_MAX_SHOWN}}"
                f"{did_you_mean(str(stated), ['demo', *_study_files_beside(path)]) or '.'}"
            )
        if Path(os.path.realpath(base)) in above:
            raise ConfigError(
                f"{path}: base must be a file that is not based on this one, got {base}."
            )
        below = with_part_values(read_study_file(base, above))
    return _without_dropped(_merge_configs(below, values), below, source=str(path))


def _study_files_beside(path: Path) -> list[str]:
    return [p.name for p in path.parent.iterdir() if p.suffix in _SUFFIXES and p != path]


def _nearest_file(path: Path) -> str:
    """Returns a hint, as "; did you mean mine.yaml?", at a file that is not there; "" without one.

    Files beside it come before the studies of this checkout. The suffix may be the other one.
    """
    by_stem: dict[str, Path] = {}
    for folder in (_STUDIES, path.parent):
        with contextlib.suppress(OSError):
            by_stem |= {p.stem: p for p in sorted(folder.iterdir()) if p.suffix in _SUFFIXES}
    for stem in difflib.get_close_matches(path.stem, by_stem, n=1):
        near, here = by_stem[stem], Path.cwd()
        return f"; did you mean {near.relative_to(here) if near.is_relative_to(here) else near}?"
    return ""


def _read_text(path: Path) -> str:
    """Returns the text of a file that is no larger than a config can be.

    Raises:
      ConfigError: if it is larger, or no file: a pipe or a device may never end.
      OSError, UnicodeDecodeError: if it cannot be read.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"config must be a readable YAML file, got {path}: a pipe or a device.")
    if status.st_size > _MAX_BYTES:
        raise ConfigError(
            f"config must be a YAML file of at most {_MAX_BYTES / 2**20:g} MiB, got {path}: "
            f"{status.st_size / 2**20:.1f} MiB."
        )
    return path.read_text(encoding="utf-8")


def _without_dropped(
    values: dict[str, Any], below: Mapping[str, Any], *, source: str
) -> dict[str, Any]:
    """Returns the values without the benchmarks and the backbones that are null.

    Args:
      values: values after a file or overrides were laid over others.
      below: the values before that.
      source: name for the origin of the values in errors.

    Raises:
      ConfigError: if one is dropped that was not there, and is no published benchmark.
    """
    # null in a file with a base, or in an override, takes an entry out of what it changes. A
    # published benchmark may be dropped twice; another name that is not there is a slip.
    for field, entry, known in (
        ("transfers", "benchmark", {*BENCHMARKS}),
        ("backbones", "backbone", set[str]()),
    ):
        entries, base_entries = values.get(field), backbone_values(below.get(field, {}))
        if not isinstance(entries, dict) or not isinstance(base_entries, dict):
            continue
        dropped = [name for name, value in entries.items() if value is None]
        if unknown := [name for name in dropped if name not in {*base_entries, *known}]:
            raise ConfigError(
                f"{source}: {field}.{unknown[0]}: null drops a {entry}, and there is none of that "
                f"name; there are {', '.join(base_entries) or 'none'}."
            )
        values = {**values, field: {k: v for k, v in entries.items() if k not in dropped}}
    return values


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    """Makes references to users' code files absolute; relative ones start at `folder`."""
    # Everything that may name a file of code, wherever it stands. Values are not checked yet, so a
    # key may hold anything: what is of another type is left for the check, which says it better.
    #
    #   in /home/me/study.yaml:   methods: [./mine.py:Ripple]   ─▶   /home/me/mine.py:Ripple
    stages = values.get("stages")
    stages = (
        [stage for stage in stages if isinstance(stage, dict)] if isinstance(stages, list) else []
    )
    for resolution in (values.get("stage2"), *(stage.get("resolution") for stage in stages)):
        if isinstance(resolution, dict):
            _anchor_paths(resolution, folder)
    backbones = values.get("backbones")
    for backbone in backbones.values() if isinstance(backbones, dict) else ():
        if isinstance(backbone, dict):
            _anchor_paths(backbone, folder)
    for owner in (values, *stages):
        if isinstance(methods := owner.get("methods"), list):
            owner["methods"] = [
                anchor_reference(m, folder) if isinstance(m, str) else m for m in methods
            ]
    for key in ("connectors", "train_budgets", "start"):
        if isinstance(by_method := values.get(key), dict):
            values[key] = {
                anchor_reference(m, folder) if isinstance(m, str) else m: v
                for m, v in by_method.items()
            }
    variants = values.get("variants")
    for variant in variants.values() if isinstance(variants, dict) else ():
        if isinstance(variant, dict) and isinstance(variant.get("of"), str):
            variant["of"] = anchor_reference(variant["of"], folder)
    transfers, sources = values.get("transfers"), values.get("sources")
    entries = [*transfers.values()] if isinstance(transfers, dict) else []
    entries += sources if isinstance(sources, list) else []
    if isinstance(steps := values.get("steps"), list):
        values["steps"] = [anchor_reference(s, folder) if isinstance(s, str) else s for s in steps]
        entries += values["steps"]
    for entry in entries:
        for key in ("reader", "metric", "step"):
            if isinstance(entry, dict) and isinstance(entry.get(key), str):
                entry[key] = anchor_reference(entry[key], folder)


def anchor_reference(reference: str, folder: Path) -> str:
    """Returns a reference to a function or class; if it names a file, with an absolute path."""
    file = file_reference(reference)
    return f"{(folder / file[0]).resolve()}:{file[1]}" if file else reference


def _merge_configs(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        is_mapping = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge_configs(merged[key], value) if is_mapping else value
    return merged


def _apply_override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    keys = path.split(".")
    if not separator or not all(keys):
        raise ConfigError(f"override must look like key.path=value, got {override!r}.")
    try:
        value = load_yaml(text)
    except YamlError as error:
        if NO_YAML not in str(error):
            raise ConfigError(f"{path}: {error}") from None
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        raise ConfigError(f"{path}: value must be YAML, got {shown!r}.") from None
    # Copied on the way down, so that the caller's values stay as they are. A key that is there may
    # have dots itself, as the backbone siglip2+llama3.2-1b.
    while keys:
        lengths = [n for n in range(len(keys), 1, -1) if ".".join(keys[:n]) in values]
        length = lengths[0] if lengths else 1
        key, keys = ".".join(keys[:length]), keys[length:]
        if keys:
            inner = values.get(key)
            inner = dict(inner) if isinstance(inner, dict) else {}
            values[key] = inner
            values = inner
        else:
            values[key] = value
