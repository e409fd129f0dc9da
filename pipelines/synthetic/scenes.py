"""Pictures of one to three coloured shapes on a coarse grid, with questions and expressions."""

import dataclasses

import numpy as np

from pipelines.synthetic.drawing import COLORS, SHAPES, mask_of, outline, paint, paper

GRID = 2
PLACES = (("top left", "top right"), ("bottom left", "bottom right"))
_OBJECT_ODDS = (0.75, 0.2, 0.05)  # of one, two and three objects in a picture


@dataclasses.dataclass(frozen=True, kw_only=True)
class SceneObject:
    """One object: its colour, its shape, its cell in the grid, and its square [pixels]."""

    color: str
    shape: str
    row: int
    column: int
    left: int
    top: int
    size: int

    @property
    def label(self) -> str:
        """Its name, for example "red circle"."""
        return f"{self.color} {self.shape}"

    @property
    def place(self) -> str:
        """Its place, for example "top left"."""
        return PLACES[self.row][self.column]

    @property
    def box(self) -> list[int]:
        """Its x0, y0, x1, y1, the last two exclusive [pixels]."""
        return [self.left, self.top, self.left + self.size, self.top + self.size]

    @property
    def polygon(self) -> list[float]:
        """Its outer edge as x0, y0, x1, y1, ... [pixels]."""
        vertices = outline(self.shape, self.size)
        return [round(v, 2) for x, y in vertices for v in (self.left + x, self.top + y)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scene:
    """A picture: its objects in raster order of their cells, all of different colours."""

    items: tuple[SceneObject, ...]
    image: np.ndarray

    def mask(self, item: SceneObject) -> np.ndarray:
        """Returns the mask (H, W) of one of its objects."""
        height, width = self.image.shape[:2]
        return mask_of(item.shape, item.left, item.top, item.size, height=height, width=width)


def make_scene(rng: np.random.Generator, *, height: int, width: int) -> Scene:
    """Returns a random scene; objects have one size and four cells, so boxes take few values."""
    # Colours differ within a scene and cells hold one object each, so "red" or "top left" always
    # names exactly one.
    count = 1 + int(rng.choice(len(_OBJECT_ODDS), p=_OBJECT_ODDS))
    colors = rng.permutation(list(COLORS))[:count]
    cells = np.sort(rng.permutation(GRID * GRID)[:count])
    items = []
    for color, cell in zip(colors, cells, strict=True):
        row, column = divmod(int(cell), GRID)
        # Four tenths of the shorter side, in a cell of half of it.
        size = min(height, width) // 10 * 4
        items.append(
            SceneObject(
                color=str(color),
                shape=str(rng.choice(SHAPES)),
                row=row,
                column=column,
                left=width * (2 * column + 1) // (2 * GRID) - size // 2,
                top=height * (2 * row + 1) // (2 * GRID) - size // 2,
                size=size,
            )
        )
    image = paper(rng, height=height, width=width)
    for item in items:
        paint(image, item.shape, item.color, item.left, item.top, item.size)
    return Scene(items=tuple(items), image=image)


def scene_questions(scene: Scene, rng: np.random.Generator, *, count: int) -> list[dict[str, str]]:
    """Returns up to `count` questions, each with exactly one right answer of a word or two."""
    questions = [("how many objects are there?", str(len(scene.items)))]
    shapes = [item.shape for item in scene.items]
    for item in scene.items:
        if shapes.count(item.shape) == 1:
            questions.append((f"what color is the {item.shape}?", item.color))
        questions.append((f"what shape is {item.color}?", item.shape))
        questions.append((f"what shape is in the {item.place}?", item.shape))
        questions.append((f"what color is in the {item.place}?", item.color))
        questions.append((f"where is the {item.label}?", item.place))
    if len(scene.items) == 1:
        questions.append(("what color is the shape?", scene.items[0].color))
    order = rng.permutation(len(questions))[:count]
    return [{"question": questions[i][0], "answer": questions[i][1]} for i in order]


def expressions(item: SceneObject, scene: Scene, rng: np.random.Generator) -> list[str]:
    """Returns two or three expressions that refer to one object and to no other."""
    name = item.label
    sentences = [name if rng.random() < 0.7 else f"{name} in the {item.place}", f"the {name}"]
    side = ("on the left", "on the right")[item.column]
    twins = [
        other
        for other in scene.items
        if other is not item and other.shape == item.shape and other.column == item.column
    ]
    if not twins and rng.random() < 0.5:
        sentences.append(f"{item.shape} {side}")
    return sentences
