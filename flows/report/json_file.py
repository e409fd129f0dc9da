"""Writes a report as JSON, and reads it back: what the pages of a finished run show."""

import dataclasses
import graphlib
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from flows.report import result_columns
from flows.report.cells import Aggregate, Cell, Comparison, Cost, Report, Score, Section
from flows.report.result_columns import CellRow, json_number
from infra.typed_json import parse_json
from pipelines.records.reasons import reason_of

_SECTION_FIELDS = (
    "benchmark", "group", "in_means", "resolution", "metric", "chance", "reference", "full_budget",
    "items", "seen",
)  # fmt: skip
_OPTIONAL_FIELDS = ("backbone", "without_question")


def to_json(report: Report) -> str:
    """Returns the whole report, with the score of each seed and its artifact's key."""
    #   {"benchmarks": [{"benchmark": "chartqa:test_human", …,
    #                    "cells": [{"method": "parcel", "budget": 64, "mean": …, "scores": […]}],
    #                    "comparisons": […]}],
    #    "aggregates": […], "comparisons": […], "notes": […]}
    value = {
        "benchmarks": [_section_json(section) for section in report.sections],
        "aggregates": [
            {
                column.name: column.json(column.value(entry))
                for column in result_columns.AGGREGATE_COLUMNS
                if column.json and not (column.is_optional and column.value(entry) is None)
            }
            for entry in report.aggregates
        ],
        "comparisons": [_comparison_json(c) for c in report.comparisons],
        "num_pretrainings": report.num_pretrainings,
        "notes": list(report.notes),
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def read_json(text: str) -> Report:
    """Returns the report that `to_json` wrote, its numbers as the JSON has them, rounded.

    Files of earlier versions lack some fields: their values are then missing. The JSON leaves
    unplanned cells out, so a method or budget that none of a benchmark's cells has is not there.

    Raises:
      ValueError: if it is not such a report.
    """
    value = parse_json(text, "the report")
    try:
        return _read_json_report(value)
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"the report is not one of ours: {reason_of(error)}.") from None


def _read_json_report(value: Any) -> Report:
    # The inverse of `to_json`, for the pages. An entry keeps the fields that the classes have;
    # columns that are computed from these are left out.
    aggregate_fields = {field.name for field in dataclasses.fields(Aggregate)}
    return Report(
        sections=tuple(_read_section(entry) for entry in value["benchmarks"]),
        aggregates=tuple(
            Aggregate(**{name: entry[name] for name in entry.keys() & aggregate_fields})
            for entry in value["aggregates"]
        ),
        comparisons=_read_comparisons(value),
        num_pretrainings=value.get("num_pretrainings", 1),
        notes=tuple(value.get("notes", ())),
    )


def _section_json(section: Section) -> dict[str, Any]:
    columns = [column for column in result_columns.CELL_COLUMNS if column.json]
    value = {name: json_number(getattr(section, name)) for name in _SECTION_FIELDS}
    # What all cells share is here once. Most of it is among the fields above, whose order stays.
    first = CellRow(section, section.cells[0])
    value |= {
        c.name: c.json(c.value(first))
        for c in columns
        if c.json and c.is_shared and not (c.is_optional and c.value(first) is None)
    }
    cells = []
    for cell in section.cells:
        if not cell.expected:
            continue
        row = CellRow(section, cell)
        entry = {
            c.name: c.json(c.value(row))
            for c in columns
            if c.json and not c.is_shared and c.is_shown(section)
        }
        seeds = [{"seed": s.seed, "score": s.score, "artifact": s.artifact} for s in cell.scores]
        cells.append({**entry, "scores": seeds})
    comparisons = [_comparison_json(c) for c in section.comparisons]
    return {**value, "cells": cells, "comparisons": comparisons}


def _comparison_json(entry: Comparison) -> dict[str, Any]:
    values = {name: json_number(value) for name, value in vars(entry).items()}
    for name in ("other_budget", "resolution", "backbone"):
        if values[name] is None:
            del values[name]
    return values


def _read_section(entry: Mapping[str, Any]) -> Section:
    # The JSON has planned cells only; a section's table is full. The gaps become cells that
    # expect no seed, which every writer leaves empty.
    by_place = {(cell["method"], cell["budget"]): cell for cell in entry["cells"]}
    methods = tuple(dict.fromkeys(method for method, _ in by_place))
    budgets = _budget_order(by_place)
    cells = [
        _read_cell(entry, by_place.get((method, budget), {"method": method, "budget": budget}))
        for method in methods
        for budget in budgets
    ]
    fields = {name: entry[name] for name in (*_SECTION_FIELDS, *_OPTIONAL_FIELDS) if name in entry}
    return Section(
        **fields,
        methods=methods,
        budgets=budgets,
        cells=tuple(cells),
        comparisons=_read_comparisons(entry),
    )


def _budget_order(places: Iterable[tuple[str, int]]) -> tuple[int, ...]:
    """Returns the budgets of a benchmark's (method, budget) in the order of its table.

    Each method has some of them, in that order: of (256) and (64, 128, 256) it is 64, 128, 256.
    """
    sorter: graphlib.TopologicalSorter[int] = graphlib.TopologicalSorter()
    for _, of_method in itertools.groupby(places, key=lambda place: place[0]):
        budgets = [budget for _, budget in of_method]
        for budget in budgets:
            sorter.add(budget)
        for before, after in itertools.pairwise(budgets):
            sorter.add(after, before)
    return tuple(sorter.static_order())


def _read_cell(section: Mapping[str, Any], entry: Mapping[str, Any]) -> Cell:
    """Returns a cell; one that is not planned has only its method and budget in `entry`."""
    shared = {"benchmark": section["benchmark"], "method": entry["method"]}
    place = {**shared, "budget": entry["budget"]}
    # The JSON says it of the cell, not of each score.
    marks = {name: entry.get(name, False) for name in ("accepted", "bfloat16")}
    scores = tuple(
        Score(**place, **score, metric=section["metric"], **marks)
        for score in entry.get("scores", ())
    )
    cost = None
    if entry.get("tokens") is not None:
        cost = Cost(
            benchmarks=(section["benchmark"],),
            method=entry["method"],
            budget=entry["budget"],
            num_images=entry["tokens"] // entry["budget"],
            tflops=entry["tflops"],
            kv_mb=entry["kv_mb"],
        )
    # Least to most: what every cell needs, what this file has, what its section shares. Entries
    # that are computed, such as `margin`, are no fields and are computed again.
    fields = {field.name: field for field in dataclasses.fields(Cell)}
    needed = {name for name, field in fields.items() if field.default is dataclasses.MISSING}
    values: dict[str, Any] = dict.fromkeys(needed)
    values |= {"n": 0, "expected": 0}
    values |= {name: value for name, value in entry.items() if name in fields}
    values |= {"chance": section["chance"], "metric": section["metric"]}
    if values["n"] is None:
        values |= {"n": int(values["mean"] is not None), "expected": 1, "seeds_known": False}
    return Cell(**values | place | {"scores": scores, "cost": cost})


def _read_comparisons(entry: Mapping[str, Any]) -> tuple[Comparison, ...]:
    return tuple(
        Comparison(**{**values, "benchmarks": tuple(values["benchmarks"])})
        for values in entry.get("comparisons", ())
    )
