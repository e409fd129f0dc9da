"""Prompts that benchmarks of several families share."""

CHOICES = "answer en  {text} choose from: {choices}"
"""Two spaces, as in big_vision's code; the report prints one. Choices are joined by `BETWEEN`."""

BETWEEN = " \t "
"""Separator of the choices."""
