"""The description of a source with the user's own rows or prompt, in place of its name."""

import dataclasses

from infra.store.digest import NOT_IDENTITY

PROMPT = "answer {lang} {text}"
"""Default prompt for a question."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnSource:
    """The user's own examples, or a published benchmark with the user's prompt.

    Attributes:
      reader: "jsonl", "csv", a function, "module:name", or the name of a published benchmark.
      name: prefix of the ids, and the part and task of rows that state none.
      prompt: the text the model reads; {text} is the question of a row, {lang} its language.
      code: (path, text) of the function's modules, for workers that lack them. It counts as code of
        the step, so it is not part of this value's identity.
    """

    reader: str
    name: str
    prompt: str = PROMPT
    code: tuple[tuple[str, bytes], ...] = dataclasses.field(default=(), metadata=NOT_IDENTITY)
