"""Prompts that benchmarks of several families share."""

CHOICES = "answer en  {text} choose from: {choices}"
"""Two spaces, as in big_vision's code; the report prints one. Choices: joined by `BETWEEN`."""

BETWEEN = " \t "
