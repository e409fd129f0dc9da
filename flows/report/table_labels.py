"""Names and order in which a report shows its methods, benchmarks and budgets; its baseline."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from flows.report.cells import Aggregate, Comparison, Report, Section


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableLabels:
    """Labels of a table; what they do not name keeps its name and follows what they name.

    Attributes:
      methods: method -> its label, in the order of the rows.
      benchmarks: benchmark -> its label, in the order of the tables.
      budgets: budgets in the order of the columns [tokens].
      baseline: the method that LaTeX and CSV have differences to; "" for none.
    """

    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012

    methods: Mapping[str, str] = dataclasses.field(default_factory=dict)
    benchmarks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    budgets: tuple[int, ...] = ()
    baseline: str = ""


def label_report(report: Report, labels: TableLabels) -> Report:
    """Returns the report with labels for names, in their order.

    Raises:
      ValueError: if a label or the baseline is of nothing in the report, or two of one kind would
        read the same.
    """
    # First every label is checked, so that a misspelt one changes nothing; then parts are sorted by
    # their old names, which labels replace.
    names = {
        "methods": (labels.methods, [m for s in report.sections for m in s.methods]),
        "benchmarks": (labels.benchmarks, [s.benchmark for s in report.sections]),
        "budgets": (labels.budgets, [b for s in report.sections for b in s.budgets]),
    }
    names["baseline"] = [labels.baseline] if labels.baseline else [], names["methods"][1]
    for field, (named, known) in names.items():
        if unknown := [str(name) for name in named if name not in known]:
            raise ValueError(
                f"labels.{field} must name {'methods' if field == 'baseline' else field} of the "
                f"table, "
                f"{', '.join(map(str, dict.fromkeys(known)))}; got {', '.join(unknown)}."
            )
        if isinstance(named, Mapping):
            shown = Counter(named.get(name, name) for name in dict.fromkeys(known))
            if same := [label for label, num in shown.items() if num > 1]:
                raise ValueError(f"labels.{field} must differ; got {', '.join(same)} twice.")
    by_benchmark = _label_rank_fn(labels.benchmarks)
    by_method = _label_rank_fn(labels.methods)
    return dataclasses.replace(
        report,
        sections=tuple(
            _label_section(section, labels)
            for section in sorted(report.sections, key=lambda s: by_benchmark(s.benchmark))
        ),
        aggregates=tuple(
            dataclasses.replace(entry, method=labels.methods.get(entry.method, entry.method))
            for entry in _sorted_within_names(report.aggregates, by_method)
        ),
        comparisons=tuple(_label_comparison(entry, labels) for entry in report.comparisons),
    )


def _label_rank_fn(named: Mapping[str, str] | Sequence[int]) -> Callable[[str | int], int]:
    """Returns a function from a name to its place; unnamed ones share the last."""
    places = {name: place for place, name in enumerate(named)}
    return lambda name: places.get(name, len(places))


def _sorted_within_names(
    entries: Sequence[Aggregate], by_method: Callable[[str | int], int]
) -> list[Aggregate]:
    order = list(dict.fromkeys((entry.name, entry.view) for entry in entries))
    return sorted(entries, key=lambda e: (order.index((e.name, e.view)), by_method(e.method)))


def _label_section(section: Section, labels: TableLabels) -> Section:
    # Sorting keeps the order of what has the same rank, so that unnamed ones stay as they were.
    methods = sorted(section.methods, key=_label_rank_fn(labels.methods))
    budgets = sorted(section.budgets, key=_label_rank_fn(labels.budgets))
    name = labels.benchmarks.get(section.benchmark, section.benchmark)
    return dataclasses.replace(
        section,
        benchmark=name,
        methods=tuple(labels.methods.get(method, method) for method in methods),
        budgets=tuple(budgets),
        reference=labels.methods.get(section.reference, section.reference),
        baseline=labels.methods.get(labels.baseline, labels.baseline),
        cells=tuple(
            dataclasses.replace(
                section.cell(method, budget),
                benchmark=name,
                method=labels.methods.get(method, method),
            )
            for method in methods
            for budget in budgets
        ),
        comparisons=tuple(_label_comparison(entry, labels) for entry in section.comparisons),
    )


def _label_comparison(entry: Comparison, labels: TableLabels) -> Comparison:
    return dataclasses.replace(
        entry,
        method=labels.methods.get(entry.method, entry.method),
        other=labels.methods.get(entry.other, entry.other),
        benchmarks=tuple(labels.benchmarks.get(name, name) for name in entry.benchmarks),
    )
