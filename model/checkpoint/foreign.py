"""Arrays in a file of another codebase: their names, shapes, and translation to ours."""

import dataclasses
import functools
import typing
from collections.abc import Iterator

import numpy as np

from model.checkpoint import translate
from model.checkpoint.array_files import Arrays, Shape
from model.checkpoint.names import (
    EMBEDDING,
    LM_HEAD,
    TOKEN_ROWS,
    NamesError,
    big_vision_keys,
    hugging_face_keys,
)
from model.config import ModelConfig
from model.layouts import Names

Codebase = typing.Literal["big_vision", "Hugging Face"]


@dataclasses.dataclass(frozen=True)
class ForeignArrays:
    """Arrays of a whole model, or of its tower or decoder alone.

    Attributes:
      arrays: arrays by their names in the file; each belongs to a parameter of the table.
      codebase: whose names they have.
      table: names of the parameters.

    Raises:
      NamesError: if names are missing or unknown, naming them.
    """

    arrays: Arrays
    codebase: Codebase
    table: Names

    def __post_init__(self) -> None:
        if self.codebase == "big_vision":
            translate.check_big_vision(self.keys, self.table)
        else:
            translate.check_hugging_face(self.keys, self.table)

    @functools.cached_property
    def keys(self) -> dict[str, str]:
        """Name of each array, as tables have it -> its name in the file."""
        big_vision = self.codebase == "big_vision"
        return (big_vision_keys if big_vision else hugging_face_keys)(self.arrays)

    @functools.cached_property
    def shapes(self) -> dict[str, Shape]:
        """Shape of each array by its name, as tables have it."""
        return {name: self.arrays.entries[key].shape for name, key in self.keys.items()}

    @property
    def our_shapes(self) -> dict[str, Shape]:
        """Shape of each of our parameters."""
        return translate.our_shapes(self.shapes, self.table)

    def check(self, model: ModelConfig) -> None:
        """Checks shapes by a model, whose vocabulary may be another.

        Raises:
          NamesError: naming arrays of another shape, or an output matrix that is not the embedding,
            where a model has one matrix for both.
        """
        if self.codebase == "big_vision":
            expected = translate.big_vision_shapes(model, self.table)
            expected = {name: expected[key] for name, key in big_vision_keys(expected).items()}
        else:
            expected = translate.hugging_face_shapes(model)
            expected |= translate.other_shapes(model, self.shapes)
        translate.check_shapes(expected | self._token_row_shapes(model), self.shapes, self.codebase)
        # Some files have the output matrix too. If it differs from the embedding, importing either
        # would change the model.
        has_both = LM_HEAD in self.keys and model.text.tied
        if has_both and not np.array_equal(
            self[self._foreign_array_name(EMBEDDING)], self[LM_HEAD]
        ):
            raise NamesError(
                f"{self.keys[LM_HEAD]} must equal the embedding, as the config says (tied)."
            )

    def _token_row_shapes(self, model: ModelConfig) -> dict[str, Shape]:
        """Returns the shapes of arrays with a row for each token: all have the embedding's rows."""
        if EMBEDDING not in self.our_shapes:
            return {}
        shape = self.our_shapes[EMBEDDING][0], model.text.width
        names = [self._foreign_array_name(path) for path in TOKEN_ROWS]
        return {name: shape for name in (*names, LM_HEAD) if name in self.keys}

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[self.keys[name]]

    def _foreign_array_name(self, path: str) -> str:
        for name in self.table:
            if name.ours == path:
                return name.big_vision if self.codebase == "big_vision" else name.hugging_face
        return ""

    def read(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yields (our path, float32 array) of every parameter, one at a time."""
        if self.codebase == "big_vision":
            return translate.read_big_vision(self.arrays, self.table)
        return translate.read_hugging_face(self.arrays, self.table)
