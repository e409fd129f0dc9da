"""The process that decodes: `python -m pipelines.video.child MEMORY_BYTES`.

Reads one JSON request a line; answers with a JSON line, then the encoded frames it announces.
It ends when its input does, so it never outlives the run.
"""

import json
import resource
import sys
from typing import BinaryIO

from PIL import Image

from pipelines.sources.item import BadInput
from pipelines.transforms.images import ImageSpec, check_size, encode_image, squash
from pipelines.video.decoders import DECODERS, choose
from pipelines.video.probe import OUT_OF_MEMORY, probe
from pipelines.video.sampling import FrameSampling


def main() -> None:
    """Serves requests until the input ends."""
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    output = sys.stdout.buffer
    sys.stdout = sys.stderr  # A library that prints must not break the protocol.
    for line in sys.stdin.buffer:
        _answer(json.loads(line), output)


def _answer(request: dict, output: BinaryIO) -> None:
    header: dict
    images: list[bytes] = []
    try:
        header, images = sample_video(
            request["path"],
            FrameSampling(**request["sampling"]),
            ImageSpec(**request["spec"]),
            request["decoder"],
        )
    except BadInput as error:
        header = {"error": str(error)}
    except MemoryError:
        header = {"error": OUT_OF_MEMORY}
    header["sizes"] = [len(image) for image in images]
    output.write(json.dumps(header).encode() + b"\n")
    output.write(b"".join(images))
    output.flush()


def sample_video(
    path: str, sampling: FrameSampling, spec: ImageSpec, decoder: str
) -> tuple[dict, list[bytes]]:
    """Returns what was found ("size", "requested", "decoded", "decoder") and the encoded frames.

    Raises:
      BadInput: if the video cannot be decoded, holds less than it declares, or has a refused size.
    """
    info = probe(path)
    bounds = {"min_side": spec.min_side, "max_pixels": spec.max_pixels}
    check_size(info.width, info.height, **bounds)
    times = sampling.times(info.duration)
    used = choose(decoder, info)
    size, decoded, encoded = (0, 0), [], []
    for time, pixels in DECODERS[used](path, info, times):  # One frame at a time is held.
        image = Image.fromarray(pixels)
        size = image.size
        decoded.append(time)
        encoded.append(encode_image(squash(image, spec), spec.encoding))
    order = sampling.loop(len(times))
    header = {
        "size": size,
        "requested": [times[i] for i in order],
        "decoded": [decoded[i] for i in order],
        "decoder": used,
    }
    return header, [encoded[i] for i in order]


if __name__ == "__main__":
    main()
