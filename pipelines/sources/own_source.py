"""Examples of the user's own, as a value: what the registry knows of published ones by name."""

import dataclasses

from infra.store.digest import NOT_IDENTITY

PROMPT = "answer {lang} {text}"
"""What the model reads for a question, unless a config says otherwise."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnSource:
    """Examples of the user's own: what reads them, and how they are asked about.

    Attributes:
      reader: "jsonl", "csv", or a function, "module:name".
      name: begins the ids; the part and the task of rows that state none.
      prompt: what the model reads; {text} is the question of a row, {lang} its language.
      code: (path, text) of the function's modules, for workers that lack them. It counts as code of
        the step, not here.
    """

    reader: str
    name: str
    prompt: str = PROMPT
    code: tuple[tuple[str, bytes], ...] = dataclasses.field(default=(), metadata=NOT_IDENTITY)
