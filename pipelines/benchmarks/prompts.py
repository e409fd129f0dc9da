"""Prompts that benchmarks of several families share."""

CHOICES = "answer en  {text} choose from: {choices}"
"""Two spaces, as in big_vision's code; the report prints one. Choices are joined by `BETWEEN`."""

BETWEEN = " \t "
"""Separator of the choices."""

SHORT_ANSWER = "Answer the question using a single word or phrase."
"""Source: haotian-liu/LLaVA `docs/Evaluation.md`; LLaVA-1.5, arXiv 2310.03744, table 7."""

LETTER = "Answer with the option's letter from the given choices directly."
"""As `SHORT_ANSWER`, for questions with choices."""
