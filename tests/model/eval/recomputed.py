"""Decoding without a cache: every token from a full pass over images, prompt and tokens so far."""

import dataclasses
import functools

import numpy as np

from model import vlm
from model.config import ModelConfig
from tests.model.tiny_models import TEXT, text_logits

NUM_NEW = 5
PROMPT_LEN = 8


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and three ragged prompts about `num_images` images each."""

    cfg: ModelConfig
    params: vlm.Params
    bucket: int
    budget: int
    num_images: int = 2
    lengths: tuple[int, ...] = (3, 7, 5)

    @functools.cached_property
    def images(self) -> np.ndarray:
        shape = len(self.lengths), self.num_images, 32, 32, 3
        return np.random.default_rng(9).uniform(-1, 1, shape).astype(np.float32)

    @functools.cached_property
    def prompt(self) -> vlm.Prompt:
        shape = len(self.lengths), PROMPT_LEN
        real = np.arange(PROMPT_LEN)[None] < np.array(self.lengths)[:, None]
        text = np.random.default_rng(8).integers(3, TEXT.vocab_size, shape)
        return vlm.Prompt(self.images, np.where(real, text, 0).astype(np.int32), real)

    @property
    def slots(self) -> vlm.Slots:
        return vlm.Slots(self.bucket, self.budget)

    @property
    def inputs(self) -> tuple[vlm.Structure, vlm.Params, vlm.Prompt, vlm.Slots]:
        return vlm.structure(self.cfg), self.params, self.prompt, self.slots

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """Returns the logits after each row's tokens (B, t), computed anew."""
        lengths, slots = np.array(self.lengths)[:, None], np.arange(PROMPT_LEN + NUM_NEW)[None]
        text = np.zeros((len(self.lengths), PROMPT_LEN + NUM_NEW), np.int32)
        text[:, :PROMPT_LEN] = self.prompt.text
        new = tokens.shape[1]
        np.put_along_axis(text, lengths + np.arange(new)[None], tokens, axis=1)
        ar = (slots >= lengths).astype(np.int32)
        prompt = vlm.Prompt(self.images, text, slots < lengths + new, ar)
        found = text_logits(*self.inputs[:2], prompt, self.slots)
        return np.take_along_axis(np.asarray(found), (lengths + new - 1)[..., None], axis=1)[:, 0]


def greedy(case: Case) -> np.ndarray:
    """Returns NUM_NEW likeliest tokens, whatever they are."""
    tokens = np.zeros((len(case.lengths), 0), np.int32)
    for _ in range(NUM_NEW):
        picked = np.argmax(case.logits(tokens), axis=-1)[:, None].astype(np.int32)
        tokens = np.concatenate([tokens, picked], axis=1)
    return tokens


def beams(case: Case, num_beams: int, stop: int) -> np.ndarray:
    """Returns the answers of big_vision's beam rule, searched in plain Python."""
    rows = range(len(case.lengths))
    live: list[list[tuple[float, list[int]]]] = [[(0.0, [])] for _ in rows]
    best: list[tuple[float, list[int]]] = [(-np.inf, []) for _ in rows]
    for _ in range(NUM_NEW):
        logs = []  # Per live hypothesis, of all rows at once.
        for rank in range(len(live[0])):
            raw = case.logits(np.array([live[r][rank][1] for r in rows], np.int32).reshape(3, -1))
            logs.append(raw - np.log(np.sum(np.exp(raw.astype(np.float64)), axis=-1))[:, None])
        for r in rows:
            if max(score for score, _ in live[r]) < best[r][0]:
                continue
            longer = []
            for rank, (score, tokens) in enumerate(live[r]):
                one = logs[rank][r]
                if score + one[stop] > best[r][0]:
                    best[r] = score + one[stop], [*tokens, stop]
                likeliest = np.argsort(-one, kind="stable")[: num_beams + 1]
                longer += [(score + one[t], [*tokens, int(t)]) for t in likeliest if t != stop]
            live[r] = sorted(longer, key=lambda h: -h[0])[:num_beams]
        # A finished row keeps its old hypotheses: pad them, so that all have one length.
        longest = max(len(tokens) for hypotheses in live for _, tokens in hypotheses)
        live = [[(s, t + [0] * (longest - len(t))) for s, t in row] for row in live]
        width = max(len(row) for row in live)
        live = [row + [row[-1]] * (width - len(row)) for row in live]
    return np.array([tokens + [0] * (NUM_NEW - len(tokens)) for _, tokens in best])
