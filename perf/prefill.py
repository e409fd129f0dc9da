"""Does a smaller budget save the time its FLOPs promise?

    python -m perf.prefill

For each budget B, the answer is the saving 1 - t_B / t_vanilla in the time of one prefill (from
images and prompts to the cache and the first logits), over the saving 1 - F_B / F_vanilla of its
FLOPs. FLOPs are those of the programs: the paper's formulas, without rows that no output reads and
with logits of the last position only. In the model, matrix products dominate on a CPU.
"""

import argparse
import dataclasses
import math
from collections.abc import Sequence

import jax

from model import vlm
from model.analysis.flops import Modality, patch_flops, prefill_flops, unread_flops
from model.config import ModelConfig
from model.connector.config import ConnectorConfig
from model.connector.routing import Kind
from model.text.config import TextConfig
from model.vision.config import VisionConfig
from perf.batches import prompts
from perf.programs import exact_slots, prefill_program
from perf.timing import Timing, table, take_turns

TARGET = 0.85
"""Least share of the promised saving that the measured time should show."""


def geometry(kind: Kind) -> ModelConfig:
    """Returns a model of width 512 with 4 blocks a tower: on a CPU, matrix products dominate."""
    return ModelConfig(
        vision=VisionConfig(width=512, depth=4, mlp_dim=2048, num_heads=8),
        text=TextConfig(
            vocab_size=2200,
            width=512,
            depth=4,
            mlp_dim=4096,
            num_heads=8,
            num_kv_heads=4,
            head_dim=64,
        ),
        connector=ConnectorConfig(kind=kind, num_heads=8),
        attn_softcap=0.0,
        final_softcap=0.0,
        projector_init="xavier",
        remat="none",
        scan_layers=False,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saving:
    """One budget compared with vanilla; every ratio is to vanilla's value.

    Attributes:
      budget: soft tokens per image.
      timing: times of the prefill.
      time_ratio: ratio of wall times.
      cpu_ratio: ratio of processor times.
      flops_ratio: ratio of the programs' FLOPs, by formula.
      paper_ratio: ratio of FLOPs by the paper's formulas, with unread rows and all logits.
      xla_ratio: ratio of the FLOPs that XLA counts in the compiled programs.
    """

    budget: int
    timing: Timing
    time_ratio: float
    cpu_ratio: float
    flops_ratio: float
    paper_ratio: float
    xla_ratio: float

    def found(self, ratio: float) -> float:
        """Returns the share of the promised saving that a ratio of times shows."""
        promised = 1 - self.flops_ratio
        return (1 - ratio) / promised if promised > 0.01 else float("nan")


def program_flops(cfg: ModelConfig, budget: int, text_len: int, *, num_images: int = 1) -> int:
    """Returns the FLOPs of one example's prefill in our program."""
    modality = Modality(name="prompt", num_images=num_images, text_tokens=text_len)
    counted = prefill_flops(cfg, budget, modality)
    head = counted.head - counted.head // text_len  # Logits of the last position only.
    unread = unread_flops(cfg, budget, modality)
    return counted.total + patch_flops(cfg, modality) - unread - head


def measure(
    vanilla: ModelConfig,
    elastic: ModelConfig,
    at: Sequence[int],
    *,
    batch_size: int,
    text_len: int,
    rounds: int,
) -> list[Saving]:
    """Returns the saving of each budget; all programs take turns in one process."""
    whole = vanilla.vision.num_patches
    cases = {"vanilla": (vanilla, whole), **{f"{b:05d}": (elastic, b) for b in at}}
    programs, counted = {}, {}
    for name, (cfg, budget) in cases.items():
        compiled, args = _program(cfg, budget, batch_size, text_len)
        programs[name] = lambda compiled=compiled, args=args: compiled(*args)
        counted[name] = (compiled.cost_analysis() or {}).get("flops", float("nan"))
    timings = take_turns(programs, rounds)
    modality = Modality(name="prompt", num_images=1, text_tokens=text_len)

    def ratio(count, budget: int) -> float:
        return count(elastic, budget) / count(vanilla, whole)

    base = timings["vanilla"]
    return [
        Saving(
            budget=b,
            timing=timings[f"{b:05d}"],
            time_ratio=timings[f"{b:05d}"].wall / base.wall,
            cpu_ratio=timings[f"{b:05d}"].cpu / base.cpu,
            flops_ratio=ratio(lambda cfg, n: program_flops(cfg, n, text_len), b),
            paper_ratio=ratio(lambda cfg, n: prefill_flops(cfg, n, modality).total, b),
            xla_ratio=counted[f"{b:05d}"] / counted["vanilla"],
        )
        for b in at
    ]


def _program(cfg: ModelConfig, budget: int, batch_size: int, text_len: int):
    prompt = jax.device_put(prompts(cfg, batch_size, text_len))
    args = vlm.init_params(cfg, 0), prompt, exact_slots(cfg, budget)
    return prefill_program(cfg).lower(*args).compile(), args


HEADER = [
    "budget",
    "ms",
    "noise",
    "time",
    "CPU time",
    "FLOPs",
    "XLA's",
    "paper's",
    "found",
    "found (CPU)",
]


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table; every ratio is to vanilla's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="counted runs of each program")
    parser.add_argument("--batch-size", type=int, default=2)
    parser.add_argument("--text-len", type=int, default=129, help="the paper's: 129")
    parser.add_argument("--budgets", type=int, nargs="+", default=[16, 64, 256])
    args = parser.parse_args(words)
    found = measure(
        geometry("vanilla"),
        geometry("parcel"),
        args.budgets,
        batch_size=args.batch_size,
        text_len=args.text_len,
        rounds=args.rounds,
    )
    rows = [
        [
            one.budget,
            f"{1000 * one.timing.wall:.0f}",
            f"{one.timing.noise:.0%}",
            *(
                f"{ratio:.3f}"
                for ratio in (
                    one.time_ratio,
                    one.cpu_ratio,
                    one.flops_ratio,
                    one.xla_ratio,
                    one.paper_ratio,
                )
            ),
            *(
                "–" if math.isnan(share) else f"{share:.0%}"
                for share in (one.found(one.time_ratio), one.found(one.cpu_ratio))
            ),
        ]
        for one in found
    ]
    print(table(HEADER, rows))
    print(f"target: at least {TARGET:.0%} of the saving the FLOPs promise")


if __name__ == "__main__":
    main()
