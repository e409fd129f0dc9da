"""Times of a decode loop with a cache: of the prefill, and of a token.

    python -m perf.decode

The model is the demo's. Two programs decode a short and a long answer; a token's time is the
difference of their times over the number of tokens between them.
"""

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence

from model import vlm
from model.config import ModelConfig
from model.connector.routing import Kind
from model.decode.generate import generate
from perf.batches import prompts
from perf.programs import exact_slots
from perf.timing import table, take_turns

CASES: tuple[tuple[Kind, int], ...] = (
    ("vanilla", 256),
    ("m3", 16),
    ("mqt", 64),
    ("parcel", 16),
    ("parcel", 64),
    ("parcel", 256),
)
"""Method and budget. Decoding is greedy: an untrained model's beam search ends after few tokens."""


def measure(
    models: Mapping[str, ModelConfig],
    cases: Sequence[tuple[str, int]],
    *,
    batch_size: int,
    text_len: int,
    num_tokens: int,
    rounds: int,
) -> list[list[str]]:
    """Returns the rows of the table: prefill [ms], one more token of the batch [ms].

    Args:
      models: models by method.
      cases: method and budget of each row.
      batch_size: prompts decoded together.
      text_len: length of the prompts [tokens].
      num_tokens: length of the longer answer; the shorter one has one token.
      rounds: counted runs of each program.
    """
    programs, params = {}, {name: vlm.init_params(cfg, 0) for name, cfg in models.items()}
    for number, (name, budget) in enumerate(cases):
        cfg = models[name]
        args = params[name], prompts(cfg, batch_size, text_len), exact_slots(cfg, budget)
        for length in (1, num_tokens):
            lowered = generate.lower(vlm.structure(cfg), *args, max_new_tokens=length, stop=None)
            programs[f"{number:02d} {length:04d}"] = functools.partial(lowered.compile(), *args)
    timings = take_turns(programs, rounds)
    rows = []
    for number, (name, budget) in enumerate(cases):
        first = timings[f"{number:02d} 0001"]
        last = timings[f"{number:02d} {num_tokens:04d}"]
        token = (last.wall - first.wall) / (num_tokens - 1)
        cpu = (last.cpu - first.cpu) / (num_tokens - 1)
        rows.append(
            [
                name,
                str(budget),
                f"{1000 * first.wall:.1f}",
                f"{1000 * token:.2f}",
                f"{1000 * cpu:.2f}",
                f"{max(first.noise, last.noise):.0%}",
            ]
        )
    return rows


HEADER = ["method", "budget", "prefill ms", "ms/token", "CPU ms/token", "noise"]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="counted runs of each program")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=33, help="of the longer answer")
    args = parser.parse_args(words)
    from flows.config.load import load

    study = load()
    models: dict[str, ModelConfig] = {}
    methods: set[Kind] = {name for name, _ in CASES}
    for name in sorted(methods):
        cfg = study.model_of(name)
        models[name] = dataclasses.replace(
            cfg, connector=dataclasses.replace(cfg.connector, buckets=())
        )
    rows = measure(
        models,
        CASES,
        batch_size=args.batch_size,
        text_len=study.stage1.text_len,
        num_tokens=args.tokens,
        rounds=args.rounds,
    )
    print(table(HEADER, rows))


if __name__ == "__main__":
    main()
