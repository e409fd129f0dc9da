"""A cast: a transfer's parameters in bfloat16, to decode more budgets from.

It takes the place of the float32 checkpoint whose files a study does not keep.

Files:
  *: parameters, config, tokenizer and mask codec, as in a checkpoint
"""

from collections.abc import Iterator

from flows.steps.families import FAMILY_REGISTRIES
from flows.steps.kind import Kind, StepContext
from infra.progress import Progress
from model import files

PRECISION = "precision"
"""Count of a cast: the type of its parameters. What is decoded from a cast has it as well."""


def make(work: StepContext) -> Iterator[Progress]:
    """Rounds the parameters of the input `checkpoint` to bfloat16."""
    from model.checkpoint.array_files import BFLOAT16
    from model.checkpoint.cast import cast_checkpoint

    yield from cast_checkpoint(work.places["checkpoint"], work.out, BFLOAT16, work.put)
    work.counts[PRECISION] = BFLOAT16.name
    work.content = (work.out / files.DIGEST).read_text().strip()


# Files are copied or rounded, and no model is built: an edit of a connector changes no byte.
CAST = Kind(
    name="cast",
    make=make,
    stop=("model.vlm", "model.connector.registry", *FAMILY_REGISTRIES),
    holds="checkpoint",
    content="model.checkpoint.folder:params_digest_of",
)
