"""Checks of a checkpoint's outputs against another codebase's, on reference inputs.

Keys of the reference file and their meaning: a reference made with transformers has
`pixel_values_nchw`, one made with big_vision `image_nhwc`; `prefix_ids` and `suffix_ids` are the
text, and every other key is an output. Logits of big_vision are without the final soft-cap, as in
its training; transformers' greedy tokens see images and prompt causally, as its `generate` does
without `token_type_ids`.
"""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from model import vlm
from model.checkpoint.digest import unflatten_params
from model.checkpoint.folder import load_config, params_of
from model.checkpoint.importer import open_source
from model.config import ModelConfig
from model.decode.generate import generate
from model.files import CONFIG
from model.npz import read_members

REFERENCE_TOLERANCE = 1e-4
"""Largest relative error of a float32 output, through whole towers."""

INPUTS = ("pixel_values_nchw", "image_nhwc", "video_btHWC", "prefix_ids", "suffix_ids")
OUTPUTS = (
    "vision_last_hidden",
    "projected_soft_tokens",
    "soft_tokens",
    "logits",
    "video_logits",
    "loss",
    "greedy_ids",
)


class OutputComparison(typing.NamedTuple):
    """The comparison of one output.

    Attributes:
      key: the output's key in the reference file.
      error: largest relative error; for tokens, the fraction that differs.
      tolerance: largest error accepted.
    """

    key: str
    error: float
    tolerance: float

    @property
    def close(self) -> bool:
        """Whether the error is within tolerance; NaN is not."""
        return self.error <= self.tolerance


class CheckError(ValueError):
    """Outputs differ from the reference."""


def check_file(checkpoint: Path, file: Path) -> Iterator[str]:
    """Yields a line for each output of a reference file: how far the checkpoint's is from it.

    Args:
      checkpoint: checkpoint folder in our format or another codebase's. It is read from disk, so
        that a conversion is checked together with the files it wrote.
      file: reference inputs and outputs, an `.npz`.

    Raises:
      ValueError: if the file lacks inputs, or outputs.
      CheckError: if an output is beyond its tolerance, after all lines.
    """
    expected = {name: member.read() for name, member in read_members(file).items()}
    wrong = []
    for finding in compare_outputs(*_load_params(checkpoint), expected):
        yield _comparison_line(finding)
        wrong += [] if finding.close else [finding.key]
    for key in uncompared_outputs(expected):
        yield f"{key:22} not compared: no such output is known"
    if wrong:
        raise CheckError(f"--check: beyond tolerance: {', '.join(wrong)} ({file}).")


def _comparison_line(finding: OutputComparison) -> str:
    verdict = "ok" if finding.close else "WRONG"
    if finding.tolerance == 0:
        return f"{finding.key:22} {finding.error:9.1%} of tokens differ, accepted none   {verdict}"
    return (
        f"{finding.key:22} {finding.error:9.2e} largest relative error, accepted "
        f"{finding.tolerance:.0e}   {verdict}"
    )


def _load_params(checkpoint: Path) -> tuple[ModelConfig, vlm.Params]:
    if (checkpoint / CONFIG).is_file():
        model = load_config(checkpoint)
        arrays = params_of(checkpoint).arrays.items()
    else:
        source = open_source(checkpoint)
        model, arrays = source.model, source.parameters()
    return model, unflatten_params({path: jnp.asarray(array) for path, array in arrays})


def relative_error(ours: np.ndarray, expected: np.ndarray) -> float:
    """Returns max |ours - expected| / (|expected| + rms(expected) / 2); infinite if shapes differ.

    Half the root mean square is the scale below which an element counts as near zero: sums of
    many float32 products cancel there, in either codebase.
    """
    # With a root mean square of 100, an element of 100 that is off by 0.01 has an error of 7e-5,
    # and an element of 0 one of 2e-4.
    ours, expected = np.asarray(ours, np.float64), np.asarray(expected, np.float64)
    if ours.shape != expected.shape:
        return float("inf")
    floor = 0.5 * np.sqrt(np.mean(np.square(expected)))
    error = np.abs(ours - expected) / np.maximum(np.abs(expected) + floor, np.finfo(float).tiny)
    return float(np.max(error, initial=0.0))


def compare_outputs(
    model: ModelConfig, params: vlm.Params, expected: Mapping[str, np.ndarray]
) -> Iterator[OutputComparison]:
    """Yields how far each output of a reference file is from ours, in the file's order.

    Keys without a known meaning are skipped; `uncompared_outputs` names them.

    Raises:
      ValueError: if the file lacks inputs, or outputs.
    """
    run = _Run(model, params, expected)
    if not set(expected) & set(run.outputs):
        raise ValueError(f"--check: the file must hold outputs, some of {sorted(run.outputs)}.")
    for key in expected:
        if key in run.outputs:
            yield run.outputs[key](key)


def uncompared_outputs(expected: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the keys of a reference file that have no known meaning."""
    return sorted(set(expected) - set(INPUTS) - set(OUTPUTS))


class _Run:
    """One model and one reference file; inputs that several outputs share are prepared once."""

    def __init__(
        self, model: ModelConfig, params: vlm.Params, expected: Mapping[str, np.ndarray]
    ) -> None:
        # The images' key tells which codebase wrote the file; other keys are the same.
        self.from_big_vision = "image_nhwc" in expected
        image = "image_nhwc" if self.from_big_vision else "pixel_values_nchw"
        missing = sorted({image, "prefix_ids", "suffix_ids"} - set(expected))
        if missing:
            raise ValueError(f"--check: the file must hold the inputs {missing}; see --help.")
        # In float32 and without recomputation, whatever the checkpoint's config says: the tolerance
        # is that of float32.
        caps = {"final_softcap": 0.0} if self.from_big_vision else {}
        self.model = dataclasses.replace(model, dtype="float32", remat="none", **caps)
        self.params, self.expected = params, expected
        # Reference models have no connector: every patch is a soft token.
        self.slots = vlm.Slots(model.vision.num_patches, model.vision.num_patches)
        # Functions, not values: only outputs that the file holds are computed.
        self.outputs: dict[str, Callable[[str], OutputComparison]] = {
            "vision_last_hidden": lambda key: self._compare_reference_output(
                key, self._compute_image_features()
            ),
            "projected_soft_tokens": lambda key: self._compare_reference_output(
                key, self._compute_soft_tokens()
            ),
            "soft_tokens": lambda key: self._compare_reference_output(
                key, self._compute_soft_tokens()
            ),
            "logits": lambda key: self._compare_reference_output(
                key, self._compute_text_logits(self.images)
            ),
            "video_logits": lambda key: self._compare_reference_output(
                key, self._compute_text_logits(self._reference_video_frames())
            ),
            "loss": lambda key: self._compare_reference_output(key, self._compute_mean_loss()),
            "greedy_ids": self._compare_greedy_ids,
        }

    @functools.cached_property
    def images(self) -> Float[np.ndarray, "B 1 H W 3"]:
        """The images, one per example."""
        if self.from_big_vision:
            return self._check_reference_images(self.expected["image_nhwc"])[:, None]
        return self._check_reference_images(
            self.expected["pixel_values_nchw"].transpose(0, 2, 3, 1)
        )[:, None]

    def _reference_video_frames(self) -> Float[np.ndarray, "B F H W 3"]:
        if "video_btHWC" not in self.expected:
            raise ValueError("--check: video_logits needs video_btHWC, which the file lacks.")
        return self._check_reference_images(self.expected["video_btHWC"])

    def _check_reference_images(self, images: np.ndarray) -> np.ndarray:
        side = self.model.vision.image_px
        if images.shape[-3:] != (side, side, 3):
            raise ValueError(
                f"--check: images must be {side} x {side} x 3 for this model, "
                f"got {images.shape[-3:]}."
            )
        return np.asarray(images, np.float32)

    @functools.cached_property
    def text(self) -> tuple[np.ndarray, np.ndarray]:
        """Token ids, and a mask that is 1 on the suffix."""
        prefix, suffix = self.expected["prefix_ids"], self.expected["suffix_ids"]
        ids = np.concatenate([prefix, suffix], axis=1).astype(np.int32)
        ar = np.concatenate([np.zeros_like(prefix), np.ones_like(suffix)], axis=1)
        return ids, ar.astype(np.int32)

    def _run_model_function(self, function: Callable, *args: typing.Any) -> typing.Any:
        with_structure = functools.partial(function, vlm.structure(self.model))
        return jax.jit(with_structure)(self.params, *args)

    def _compute_image_features(self) -> np.ndarray:
        return self._run_model_function(vlm.image_features, self.images)[:, 0]

    def _compute_soft_tokens(self) -> np.ndarray:
        return self._run_model_function(vlm.soft_tokens, self.images, self.slots)[0]

    def _compute_text_logits(self, images: np.ndarray) -> np.ndarray:
        ids, ar = (x[: len(images)] for x in self.text)
        return self._run_model_function(
            vlm.text_logits, vlm.Prompt(images, ids, mask_ar=ar), self.slots
        )

    def _compute_mean_loss(self) -> np.ndarray:
        ids, ar = self.text
        example = vlm.Example(self.images, ids, mask_ar=ar, mask_loss=ar)
        losses = self._run_model_function(vlm.token_losses, example, self.slots)
        return np.asarray(jnp.sum(losses)) / ar[:, 1:].sum()

    def _compare_greedy_ids(self, key: str) -> OutputComparison:
        expected = self.expected[key]
        prompt = np.asarray(self.expected["prefix_ids"], np.int32)
        # Padded by one slot, which must not change the answers.
        ids = np.pad(prompt, ((0, 0), (0, 1)))
        real = np.broadcast_to(np.arange(ids.shape[1]) < prompt.shape[1], ids.shape)
        generated = generate(
            vlm.structure(self.model),
            self.params,
            vlm.Prompt(self.images, ids, real),
            self.slots,
            max_new_tokens=expected.shape[1],
            stop=None,
            causal=not self.from_big_vision,
        )
        return OutputComparison(key, float(np.mean(np.asarray(generated) != expected)), 0.0)

    def _compare_reference_output(self, key: str, ours: typing.Any) -> OutputComparison:
        expected = self.expected[key]
        if key.endswith("logits"):  # Entries beyond the vocabulary belong to no token.
            expected = expected[..., : self.model.text.vocab_size]
        return OutputComparison(
            key, relative_error(np.asarray(ours), expected), REFERENCE_TOLERANCE
        )
