"""Trains the mask codec on the masks of prepared datasets."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from infra.progress import Progress
from model.files import CODEC_REPORT, MASK_CODEC
from model.lowering import platform
from model.masks.codec import (
    MaskCodec,
    Params,
    crop_mask,
    decode_features,
    encode_features,
    init_params,
    look_up,
    nearest_codes,
)
from model.masks.config import MaskCodecConfig
from model.masks.tokens import located_masks
from model.seeds import Seeds
from pipelines.records.codes import NUM_SEG, SEG_PER_MASK
from pipelines.records.dataset import Dataset
from pipelines.records.rle import decode_mask

_COMMITMENT = 0.25
_B2 = 0.99
_REPORT_STEPS = 20
_KMEANS_ROUNDS = 12
_MIN_DISTANCE = 0.05
"""Distance below which two features count as equal [standard deviations of the features]."""
_BESIDE = 0.25
"""Distance of a spare code from the feature that it lies beside [likewise]."""
_CODEBOOK = "_vq_vae._embedding"


def collect_crops(data: Sequence[str]) -> Float[np.ndarray, "N 64 64"]:
    """Returns the crop of every mask in prepared datasets, in the records' order, in [0, 1]."""
    crops = [
        crop_mask(decode_mask(rle), box)
        for directory in data
        for record in Dataset(directory).records()
        if record.masks
        for box, rle in located_masks(record)
    ]
    return np.stack(crops) if crops else np.zeros((0, 64, 64), np.float32)


def fit_codec(
    crops: np.ndarray | Sequence[np.ndarray], config: MaskCodecConfig, out: str, seed: int
) -> Iterator[Progress]:
    """Trains a codec; when exhausted, `out` holds `mask_codec.npz` and `codec.json`.

    The first third of the updates trains encoder and decoder without the codebook, which then
    starts from clusters of the encoder's outputs. Deterministic in its arguments, and the same on
    every processor: it computes in float64, so that rounding, which differs from one to the other
    and grows a millionfold while the encoder learns, reaches none of the codes.

    Args:
      crops: masks in their boxes, 64x64, bool or in [0, 1].
      config: size of the codec and length of the training.
      out: an existing folder [path].
      seed: seed from which those of initial values and order are derived (see `seeds`).

    Raises:
      ValueError: if there are no crops.
    """
    if len(crops) == 0:
        raise ValueError("crops is empty: no record has a mask; add a corpus with masks.")
    seeds = Seeds.of(seed)
    rng = np.random.default_rng(seeds.order)
    # Which crops are used is drawn, but they stay in the records' order.
    sampled_crops = np.sort(rng.permutation(len(crops))[: config.max_crops])
    data = np.asarray(crops)[sampled_crops].astype(np.float32)
    with _codec_float64_precision():
        params = {
            name: jnp.asarray(value, jnp.float64)
            for name, value in init_params(config, seeds.init).items()
        }
        opt_state = _codec_optimizer().init(params)
    loss = np.float64(np.nan)
    # step   0 ............ 1/3 ................................. end
    #        no codebook    codebook starts at the encoder's clusters
    #
    # With a codebook from the start, an untrained encoder's outputs would all share a few codes,
    # and codes that no output is near get no gradient.
    free_steps = config.train_steps // 3
    for step in range(config.train_steps):
        if step == free_steps:
            sample = rng.choice(len(data), min(len(data), 256), replace=False)
            with _codec_float64_precision():
                params = _start_codebook(params, jnp.asarray(data[sample], jnp.float64), rng)
        batch = data[rng.integers(len(data), size=config.batch_size)]
        # The phase and the rate are arguments, so that one compiled program serves all steps.
        inputs = batch, step >= free_steps, _learning_rate(config, step)
        with _codec_float64_precision():
            crop_batch, quantized, rate = (jnp.asarray(number, jnp.float64) for number in inputs)
            params, opt_state, loss = _codec_step(params, opt_state, crop_batch, quantized, rate)
        if (step + 1) % _REPORT_STEPS == 0 or step + 1 == config.train_steps:
            yield Progress(
                done=step + 1,
                total=config.train_steps,
                loss=float(loss),
                note=f"loss {float(loss):.3f}",
            )
    # Rounded to float32 before it is tested: the report is on the codec that is saved.
    arrays = {name: np.asarray(value, np.float32) for name, value in params.items()}
    iou = reconstruction_iou(MaskCodec(arrays), data)
    np.savez(Path(out) / MASK_CODEC, **arrays)  # pyright: ignore[reportArgumentType]
    report = {"iou": round(iou, 4), "crops": len(data), "loss": round(float(loss), 5)}
    (Path(out) / CODEC_REPORT).write_text(json.dumps(report, sort_keys=True) + "\n")


def adopt_codec(
    crops: np.ndarray | Sequence[np.ndarray], config: MaskCodecConfig, out: str
) -> Iterator[Progress]:
    """Copies the codec at `config.path`; when exhausted, `out` holds the files of `fit_codec`.

    The report has the IoU of decode(encode(crop)) with the crop, if there are crops.

    Raises:
      ValueError: if the file is missing, or is not a codec.
    """
    path = Path(config.path or "")
    if not path.is_file():
        raise ValueError(f"mask_codec.path must be an .npz file like vae-oid.npz, got {path}.")
    codec = MaskCodec.load(path)
    data = np.asarray(crops[: config.max_crops]).astype(np.float32)
    report: dict[str, float | int] = {"crops": len(data)}
    if len(data):
        report["iou"] = round(reconstruction_iou(codec, data), 4)
    shutil.copyfile(path, Path(out) / MASK_CODEC)
    (Path(out) / CODEC_REPORT).write_text(json.dumps(report, sort_keys=True) + "\n")
    yield Progress(done=1, total=1)


def reconstruction_iou(codec: MaskCodec, crops: Float[np.ndarray, "N 64 64"]) -> float:
    """Returns the mean IoU of decode(encode(crop)) with the crop."""
    decoded = codec.decode_many(codec.encode_crops(crops)) > 0
    truth = crops > 0.5
    inter = (decoded & truth).sum(axis=(1, 2))
    union = (decoded | truth).sum(axis=(1, 2))
    return float(np.mean(inter / np.maximum(union, 1)))


def _learning_rate(config: MaskCodecConfig, step: int) -> float:
    # Five percent of the steps up, then a straight line down to five percent of the peak.
    warmup = max(1, config.train_steps // 20)
    progress = min(1.0, step / config.train_steps)
    return config.peak_lr * min(1.0, (step + 1) / warmup) * (0.05 + 0.95 * (1 - progress))


def _codec_optimizer(rate: jax.Array | float = 0.0) -> optax.GradientTransformation:
    """Returns the optimizer; the rate is an argument, so that one program serves all steps."""
    return optax.chain(
        optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=_B2), optax.scale(-rate)
    )  # type: ignore[arg-type]


@jax.jit
def _codec_step(
    params: Params,
    opt_state: optax.OptState,
    crops: jax.Array,
    quantized: jax.Array,
    rate: jax.Array,
) -> tuple[Params, optax.OptState, jax.Array]:
    loss, gradients = jax.value_and_grad(_codec_loss)(params, crops, quantized)
    # See `train.optimizer.update_params`.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = _codec_optimizer(rate).update(gradients, opt_state)
        changed = optax.apply_updates(params, updates)
    return changed, opt_state, loss  # type: ignore[return-value]


def _codec_loss(params: Params, crops: jax.Array, quantized: jax.Array) -> jax.Array:
    """Returns the squared error in [-1, 1], plus the codebook loss and the commitment loss."""
    features = encode_features(params, crops)
    codes = look_up(params, nearest_codes(params, features))
    # The nearest code has no gradient. Forward this is the code; backward the bracket is a
    # constant, so the encoder gets the decoder's gradient as if there had been no code at all.
    through = features + jax.lax.stop_gradient(codes - features)
    grid = jnp.where(quantized > 0, through, features)
    error = jnp.mean((decode_features(params, grid) - (crops * 2 - 1)) ** 2)
    book = jnp.mean((codes - jax.lax.stop_gradient(features)) ** 2)
    commitment = jnp.mean((jax.lax.stop_gradient(codes) - features) ** 2)
    return error + quantized * (book + _COMMITMENT * commitment)


def _start_codebook(params: Params, crops: jax.Array, rng: np.random.Generator) -> Params:
    """Returns the parameters with the codebook at the clusters of the encoder's outputs."""
    features = np.asarray(encode_features(params, crops)).reshape(len(crops) * SEG_PER_MASK, -1)
    centers = _initial_codebook(features, rng)
    # k-means: each feature goes to its nearest center, then each center to the mean of its
    # features. A center without features stays where it is.
    for _ in range(_KMEANS_ROUNDS):
        distances = (centers**2).sum(1)[None] - 2 * features @ centers.T
        owner = distances.argmin(1)
        for code in range(NUM_SEG):
            cluster = features[owner == code]
            centers[code] = cluster.mean(0) if len(cluster) else centers[code]
    return {**params, _CODEBOOK: jnp.asarray(centers)}


def _initial_codebook(
    features: Float[np.ndarray, "N E"], rng: np.random.Generator
) -> Float[np.ndarray, "codes E"]:
    """Returns a start for the codebook: features that are far from each other.

    Each is the feature that is farthest from those before it. Masks repeat (an empty corner is like
    any other), and of two equal centers rounding alone would decide which one is the nearest. So
    where there are fewer different features than codes, the other codes lie beside these features.
    """
    scale = float(features.std())
    indices = [int(rng.integers(len(features)))]
    nearest = np.full(len(features), np.inf)
    while len(indices) < NUM_SEG:
        nearest = np.minimum(nearest, ((features - features[indices[-1]]) ** 2).mean(axis=1))
        if nearest.max() < (_MIN_DISTANCE * scale) ** 2:
            break
        indices.append(int(nearest.argmax()))
    centers = features[indices]
    duplicates = centers[np.arange(NUM_SEG - len(indices)) % len(indices)]
    return np.concatenate([centers, duplicates + rng.normal(0, _BESIDE * scale, duplicates.shape)])


@contextlib.contextmanager
def _codec_float64_precision() -> Iterator[None]:
    """Makes JAX compute in float64; on the host where the accelerator is a TPU, which has none."""
    host = jax.local_devices(backend="cpu")[0] if platform() == "tpu" else None
    with jax.enable_x64(True), jax.default_device(host):
        yield
