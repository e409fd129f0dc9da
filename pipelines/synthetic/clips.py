"""Short clips of shapes that rest, move or appear, and questions about them."""

import dataclasses
from collections.abc import Iterator

import numpy as np

from pipelines.synthetic.config import CorpusConfig
from pipelines.synthetic.drawing import COLORS, SHAPES, paint, paper

DIRECTIONS = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
STORIES = ("moving", "moving", "counting", "ordering")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Actor:
    """One shape of a clip, with its positions and the time at which it appears.

    Attributes:
      color: name of its colour.
      shape: name of its shape.
      size: side of its square [pixels].
      start: left and top in the first frame [pixels].
      stop: left and top in the last frame [pixels].
      appears: first frame that shows it [fraction of the clip].
    """

    color: str
    shape: str
    size: int
    start: tuple[float, float]
    stop: tuple[float, float]
    appears: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip:
    """A clip: actors on a still background, and (question, answer) pairs about them."""

    actors: tuple[Actor, ...]
    background: np.ndarray
    num_frames: int
    questions: tuple[tuple[str, str], ...]

    def frames(self) -> Iterator[np.ndarray]:
        """Yields the frames (H, W, 3) in order."""
        for number in range(self.num_frames):
            time = number / (self.num_frames - 1)
            frame = self.background.copy()
            for actor in self.actors:
                if time >= actor.appears:
                    left, top = (
                        round(a + (b - a) * time)
                        for a, b in zip(actor.start, actor.stop, strict=True)
                    )
                    paint(frame, actor.shape, actor.color, left, top, actor.size)
            yield frame


def make_clip(config: CorpusConfig, index: int, rng: np.random.Generator) -> Clip:
    """Returns clip number `index`; `index` decides its story, `rng` the rest."""
    story = STORIES[index % len(STORIES)]
    if story == "moving":
        actors, questions = _moving_clip(config, rng)
    elif story == "counting":
        actors, questions = _counting_clip(config, rng)
    else:
        actors, questions = _ordering_clip(config, rng)
    return Clip(
        actors=tuple(actors),
        background=paper(rng, height=config.video_height, width=config.video_width),
        num_frames=round(config.video_frames * float(rng.choice((0.75, 1.0, 1.25)))),
        questions=tuple(questions),
    )


def _moving_clip(
    config: CorpusConfig, rng: np.random.Generator
) -> tuple[list[Actor], list[tuple[str, str]]]:
    """Returns a shape that crosses the picture and, half of the time, a smaller one in a corner."""
    # start ─▶ centre ─▶ stop: the shape is in the middle halfway, so any frame pair shows the
    # motion.
    width, height = config.video_width, config.video_height
    size = round(0.42 * min(width, height))
    colors, shapes = rng.permutation(list(COLORS)), rng.permutation(list(SHAPES))
    direction = str(rng.choice(list(DIRECTIONS)))
    dx, dy = DIRECTIONS[direction]
    center = ((width - size) / 2, (height - size) / 2)
    start = (center[0] * (1 - dx), center[1] * (1 - dy))
    stop = (center[0] * (1 + dx), center[1] * (1 + dy))
    actor = Actor(color=str(colors[0]), shape=str(shapes[0]), size=size, start=start, stop=stop)
    actors = [actor]
    # A second shape that rests, half of the time: then motion alone tells which one is meant. It is
    # painted first, so the moving shape passes in front.
    if rng.random() < 0.5:
        small = round(0.24 * min(width, height))
        spot = (
            float(rng.choice((2, width - small - 2))),
            float(rng.choice((2, height - small - 2))),
        )
        actors.insert(
            0, Actor(color=str(colors[1]), shape=str(shapes[1]), size=small, start=spot, stop=spot)
        )
    return actors, [
        ("what color is the moving shape?", actor.color),
        ("what shape is moving?", actor.shape),
        (f"which way does the {actor.shape} move?", direction),
    ]


def _counting_clip(
    config: CorpusConfig, rng: np.random.Generator
) -> tuple[list[Actor], list[tuple[str, str]]]:
    """Returns one to three resting shapes of one colour, side by side."""
    # Three columns of equal width, of which one to three hold a shape: none can overlap.
    width, height = config.video_width, config.video_height
    count = int(rng.integers(1, 4))
    size = round(0.3 * min(width, height))
    color = str(rng.choice(list(COLORS)))
    actors = []
    for column in np.sort(rng.permutation(3)[:count]):
        left = width * (2 * int(column) + 1) / 6 - size / 2
        top = float(rng.integers(2, height - size - 1))
        spot = (left, top)
        shape = str(rng.choice(list(SHAPES)))
        actors.append(Actor(color=color, shape=shape, size=size, start=spot, stop=spot))
    questions = [("how many shapes are there?", str(count))]
    questions.append(("what color are the shapes?", color) if count > 1 else _single_clip(color))
    return actors, questions


def _single_clip(color: str) -> tuple[str, str]:
    return "what color is the shape?", color


def _ordering_clip(
    config: CorpusConfig, rng: np.random.Generator
) -> tuple[list[Actor], list[tuple[str, str]]]:
    """Returns two shapes, left and right; the second appears halfway through the clip."""
    # Left and right are drawn apart from first and last, so that the place does not give the order
    # away.
    width, height = config.video_width, config.video_height
    size = round(0.42 * min(width, height))
    colors, shapes = rng.permutation(list(COLORS)), rng.permutation(list(SHAPES))
    halves = rng.permutation(2)
    actors = []
    for number in range(2):
        left = width * (2 * int(halves[number]) + 1) / 4 - size / 2
        spot = (left, (height - size) / 2)
        actors.append(
            Actor(
                color=str(colors[number]),
                shape=str(shapes[number]),
                size=size,
                start=spot,
                stop=spot,
                appears=0.5 * number,
            )
        )
    return actors, [
        ("which shape appears first?", actors[0].shape),
        ("what color is the shape that appears first?", actors[0].color),
        ("what color is the shape that appears last?", actors[1].color),
    ]
