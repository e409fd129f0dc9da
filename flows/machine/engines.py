"""Tries an engine in a process of its own: `python -m flows.machine.engines NAME [STORE]`.

A broken engine may hang, or crash its process. Each trial returns one line on what it did; of an
error, `parcel doctor` shows the last line of the traceback.
"""

import contextlib
import importlib.util
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

NUM = 20
"""Number of elements, frames or summands in a trial."""


def try_jax() -> str:
    """Sums numbers on every device that JAX finds."""
    import jax
    import jax.numpy as jnp

    for device in jax.devices():
        total = int(jnp.arange(NUM, device=device).sum())
        _check_engine_result(total == NUM * (NUM - 1) // 2, f"{device} added up to {total}")
    kinds = sorted({device.device_kind for device in jax.devices()})
    return f"{len(jax.devices())} devices: {', '.join(kinds)}"


def try_beam() -> str:
    """Counts elements with the Beam runner that prepares datasets on this machine."""
    import apache_beam as beam
    from apache_beam.io import WriteToText
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    with tempfile.TemporaryDirectory() as folder:
        with beam.Pipeline(runner=FnApiRunner()) as pipeline:
            counted = pipeline | beam.Create(range(NUM)) | beam.combiners.Count.Globally()
            _ = counted | WriteToText(f"{folder}/count", shard_name_template="")
        count_text = Path(f"{folder}/count").read_text().strip()
    _check_engine_result(count_text == str(NUM), f"of {NUM} elements it counted {count_text}")
    return "FnApiRunner counts right"


def try_ray() -> str:
    """Runs one task on a cluster started for it."""
    from infra.ray.cluster import Cluster

    cluster = Cluster(num_cpus=1)
    try:
        counted = list(cluster.stream(_count_task, num_cpus=1, name="doctor"))
    finally:
        cluster.stop()
    _check_engine_result(counted == [*range(NUM)], f"a task yielded {counted}")
    return "a cluster of this machine starts and runs a task"


def try_video() -> str:
    """Writes a short clip and decodes it with PyAV, and with decord where that is installed."""
    import av
    import numpy as np

    from pipelines.video.decoders import decode_decord, decode_pyav
    from pipelines.video.probe import probe_video

    # Frame i is grey of level 10 · i, so a decoded frame says which one it is, whatever the codec
    # rounds. At 10 frames a second, second 0 is frame 0 and second 1 is frame 10.
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/clip.mp4"
        with av.open(path, "w") as out:
            stream = out.add_stream("libx264", rate=10)
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            for i in range(NUM):
                pixels = np.full((48, 64, 3), 10 * i, np.uint8)
                out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
            out.mux(stream.encode(None))
        info = probe_video(path)
        has_decord = importlib.util.find_spec("decord") is not None
        for decode in (decode_pyav, decode_decord) if has_decord else (decode_pyav,):
            found = decode(path, info, [0.0, 1.0])
            _check_engine_result(found is not None, f"{decode.__name__} does not read H.264 in MP4")
            frames = [frame for _, frame in found or ()]
            levels = [round(float(frame.mean()) / 10) for frame in frames]
            _check_engine_result(
                levels == [0, 10], f"{decode.__name__} found frames {levels} for 0 and 10"
            )
    if has_decord:
        return "PyAV and decord find the frames asked for"
    return "PyAV finds the frames asked for; decord is not installed, so PyAV reads all clips"


def try_tf(store: str) -> str:
    """Reads a prepared shard back with `tf.data`: one of the store, or a small one written here."""
    from infra.store.store import Store
    from pipelines.records.dataset import Dataset
    from pipelines.records.tf_check import check_with_tf_data

    keys: list[str] = []
    with contextlib.suppress(OSError, ValueError):  # The finding on the store says why.
        keys = Store(store, make=False).keys("dataset")
    with tempfile.TemporaryDirectory() as folder:
        dataset = Dataset(
            Store(store, make=False).get(keys[0]).uri if keys else _write_dataset(folder)
        )
        found = check_with_tf_data(dataset, max_records=0)
    what = keys[0] if keys else "a dataset written for the trial"
    _check_engine_result(not found.failure, f"{what}: {found.text}")
    return f"{what}: {found.text}"


def _write_dataset(folder: str) -> str:
    """Writes a dataset of one shard, with pictures of both encodings and a clip of two windows."""
    import numpy as np
    from PIL import Image

    import pipelines.records.example as example
    from pipelines.images.square import encode_image
    from pipelines.records.dataset import DatasetInfo, PartInfo
    from pipelines.records.schema import Record
    from pipelines.records.tfrecord import write_shard

    pixels = np.arange(28 * 28 * 3, dtype=np.uint8).reshape(28, 28, 3)
    jpeg, png = (encode_image(Image.fromarray(pixels), encoding) for encoding in ("jpeg", "png"))
    records = [
        Record(
            id=f"doctor/{number}", images=images, num_windows=max(1, len(images) // 2),
            prefix="caption en", suffixes=("a pattern", "ein Muster"), task="caption",
            source="doctor.png", source_sha256="0" * 64, meta={"number": number},
            frame_requested=times, frame_decoded=times,
        )
        for number, (images, times) in enumerate(
            [((jpeg,), ()), ((png,), ()), ((jpeg, png) * 2, (0.0, 1.5, 2.5, 4.0))]
        )
    ]  # fmt: skip
    name = "doctor-00000-of-00001.tfrecord"
    num = write_shard(f"{folder}/{name}", map(example.encode_example, records))
    parts = {"doctor": PartInfo(shards=(name,), num_records=(num,))}
    info = DatasetInfo(name="doctor", parts=parts, num_inputs=num, num_rejected=0, image_px=28)
    info.write(folder)
    return folder


def _count_task() -> Iterator[int]:
    yield from range(NUM)


def _check_engine_result(holds: bool, otherwise: str) -> None:
    if not holds:
        raise RuntimeError(otherwise)


ENGINES: dict[str, Callable[..., str]] = {
    "jax": try_jax,
    "beam": try_beam,
    "ray": try_ray,
    "video": try_video,
    "tf": try_tf,
}
"""Engine -> its trial, which gets the store's URI if it is that of `tf`. JAX trains, Beam prepares,
Ray runs the steps, video decodes clips, and others read the records with TensorFlow."""


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    print(ENGINES[sys.argv[1]](*sys.argv[2:]))
