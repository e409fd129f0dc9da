"""Charts with made-up numbers, and questions about them."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from pipelines.synthetic.drawing import COLORS

KINDS = ("bar", "pie", "line")
SIZES = ((320, 240), (360, 270), (300, 300), (400, 280), (280, 320))
TITLES = ("Sales", "Visitors", "Exports", "Rainfall", "Members", "Income", "Budget", "Energy")

_KIND_ODDS = (0.5, 0.35, 0.15)
_PART = {"bar": "bar", "pie": "slice", "line": "line"}
_MOST = {"bar": "tallest", "pie": "largest", "line": "highest"}
_LEAST = {"bar": "shortest", "pie": "smallest", "line": "lowest"}
_COMPARED = {"bar": "taller", "pie": "larger", "line": "higher"}
_POINTS = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart: `colors[i]` is the colour of part i, from left to right.

    Attributes:
      kind: bar, pie or line.
      title: the word above the chart.
      colors: one colour per bar, slice or line, all different.
      values: one number per part; for pies they add up to 100; for a line it is its mean.
      points: for each line, its values in five years; lines never cross.
      first_year: label of the first bar or point.
      size: width and height [pixels].
    """

    kind: str
    title: str
    colors: tuple[str, ...]
    values: tuple[int, ...]
    points: tuple[tuple[int, ...], ...] = ()
    first_year: int
    size: tuple[int, int]


def make_chart(rng: np.random.Generator) -> Chart:
    """Returns a random chart whose largest part is easy to see."""
    # Values first, since their number is that of the colours. A line's value is its mean, so that
    # questions on the highest or lowest are asked the same way of every kind.
    kind = KINDS[int(rng.choice(len(KINDS), p=_KIND_ODDS))]
    points: tuple[tuple[int, ...], ...] = ()
    if kind == "bar":
        values = _bar_values(rng)
    elif kind == "pie":
        values = _pie_values(rng)
    else:
        points = _line_points(rng)
        values = tuple(round(sum(line) / len(line)) for line in points)
    colors = tuple(str(color) for color in rng.permutation(list(COLORS))[: len(values)])
    return Chart(
        kind=kind,
        title=str(rng.choice(TITLES)),
        colors=colors,
        values=values,
        points=points,
        first_year=int(rng.integers(2001, 2017)),
        size=SIZES[int(rng.integers(len(SIZES)))],
    )


def human_questions(chart: Chart, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Returns two questions on the look of the chart, with their answers."""
    part = _PART[chart.kind]
    # A single line has nothing to be compared with, so it is asked for its colour and its
    # direction.
    if len(chart.colors) == 1:
        rising = chart.points[0][-1] > chart.points[0][0]
        trend = (f"Does the {part} rise or fall?", "rise" if rising else "fall")
        return [(f"What is the color of the {part}?", chart.colors[0]), trend]
    most_question = (
        f"What is the color of the {_MOST[chart.kind]} {part}?",
        _extreme_color(chart, max),
    )
    candidates = [_comparison_question(chart, rng)]
    if chart.kind == "bar":
        candidates.append(("What is the color of the leftmost bar?", chart.colors[0]))
        candidates.append(("What is the color of the rightmost bar?", chart.colors[-1]))
    elif rng.random() < 0.3:
        least_question = f"What is the color of the {_LEAST[chart.kind]} {part}?"
        candidates.append((least_question, _extreme_color(chart, min)))
    return [most_question, candidates[int(rng.integers(len(candidates)))]]


def augmented_questions(chart: Chart, rng: np.random.Generator) -> list[tuple[str, str]]:
    """Returns two questions on the data behind the chart, with their answers."""
    part = _PART[chart.kind]
    questions = [(f"How many {part}s are shown?", str(len(chart.colors)))]
    if chart.kind != "line":
        bar = int(rng.integers(len(chart.colors)))
        question = f"What is the value of the {chart.colors[bar]} {part}?"
        questions.append((question, str(chart.values[bar])))
    else:
        questions.append(("What is the title of the chart?", chart.title))
    first = ("Which color has the highest value?", _extreme_color(chart, max))
    if len(chart.colors) == 1:
        first = ("Which color is shown?", chart.colors[0])
    elif rng.random() < 0.1:
        first = ("Which color has the lowest value?", _extreme_color(chart, min))
    return [first, questions[int(rng.integers(len(questions)))]]


def _bar_values(rng: np.random.Generator) -> tuple[int, ...]:
    """Returns two to four different heights, the tallest far above the others."""
    count = int(rng.integers(2, 5))
    top = int(rng.choice([70, 80]))
    lower_values = rng.permutation([10, 20, 30, 40])[: count - 1]
    return tuple(int(value) for value in rng.permutation([top, *lower_values]))


def _pie_values(rng: np.random.Generator) -> tuple[int, ...]:
    """Returns shares in tens; the largest and the smallest one are easy to see."""
    shares = ((70, 30), (80, 20), (60, 30, 10), (70, 20, 10))
    pie_shares = shares[int(rng.integers(len(shares)))]
    return tuple(int(share) for share in rng.permutation(pie_shares))


def _line_points(rng: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Returns one to three lines that rise or fall by 20 and stay 10 or more apart."""
    count = int(rng.integers(1, 4))
    lanes = rng.permutation([10, 40, 70])[:count]
    lines = []
    for lane in lanes:
        ramp = np.linspace(0, 20, _POINTS) + rng.integers(-2, 3, size=_POINTS)
        ramp = ramp if rng.random() < 0.5 else ramp[::-1]
        lines.append(tuple(int(lane + v) for v in ramp))
    return tuple(lines)


def _extreme_color(chart: Chart, pick: Callable[[Sequence[int]], int]) -> str:
    return chart.colors[chart.values.index(pick(chart.values))]


def _comparison_question(chart: Chart, rng: np.random.Generator) -> tuple[str, str]:
    left_bar, right_bar = (int(i) for i in rng.permutation(len(chart.colors))[:2])
    winner = left_bar if chart.values[left_bar] > chart.values[right_bar] else right_bar
    colors = f"{chart.colors[left_bar]} or the {chart.colors[right_bar]}"
    question = f"Which is {_COMPARED[chart.kind]}, the {colors} {_PART[chart.kind]}?"
    return question, chart.colors[winner]
