"""Time of all budgets in one pass over the images, against the largest budget alone.

    python -m perf.evaluation

The model is the demo's; the vision tower runs once per batch, and each budget decodes an answer.
"""

import argparse
import functools
from collections.abc import Sequence

from model import vlm
from model.config import ModelConfig
from model.decode.generate import generate
from perf.batches import prompts
from perf.programs import exact_slots
from perf.timing import Timing, table, take_turns


def measure(
    cfg: ModelConfig,
    budgets: Sequence[int],
    *,
    batch_size: int,
    text_len: int,
    num_tokens: int,
    rounds: int,
) -> dict[str, Timing]:
    """Returns the times of a batch: "largest" alone, and "all" budgets.

    Args:
      cfg: the model.
      budgets: soft tokens per image.
      batch_size: prompts decoded together.
      text_len: length of the prompts [tokens].
      num_tokens: length of the answers [tokens].
      rounds: counted runs of each.
    """
    structure, params = vlm.structure(cfg), vlm.init_params(cfg, 0)
    prompt = prompts(cfg, batch_size, text_len)

    def answer(chosen: Sequence[int]) -> list[object]:
        seen = prompt._replace(images=vlm.see(structure, params, prompt.images))
        return [
            generate(
                structure,
                params,
                seen,
                exact_slots(cfg, budget),
                max_new_tokens=num_tokens,
                stop=None,
            )
            for budget in chosen
        ]

    programs = {
        "largest": functools.partial(answer, [max(budgets)]),
        "all": functools.partial(answer, budgets),
    }
    return take_turns(programs, rounds)


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=5, help="of an answer, such as four corners")
    args = parser.parse_args(words)
    from flows.config.load import load

    study = load()
    timings = measure(
        study.model_of("parcel"),
        study.budgets,
        batch_size=args.batch_size,
        text_len=study.stage1.text_len,
        num_tokens=args.tokens,
        rounds=args.rounds,
    )
    rows = [
        [name, f"{1e3 * t.wall:.0f}", f"{1e3 * t.cpu:.0f}", f"{t.noise:.0%}"]
        for name, t in sorted(timings.items(), reverse=True)
    ]
    print(table(["budgets", "batch [ms]", "CPU [ms]", "noise"], rows))
    ratio = timings["all"].cpu / timings["largest"].cpu
    print(f"all {len(study.budgets)} / largest, by CPU: {ratio:.2f}")


if __name__ == "__main__":
    main()
