"""The process that decodes: `python -m pipelines.video.child MEMORY_BYTES`.

It writes the line "ready". Then it reads one JSON request per line, and answers each with a JSON
line that gives the frames' sizes, followed by the encoded frames. It ends when its input ends, so
it never outlives the run.

The limits are on processor time and address space, so that the load of the machine does not change
the outcome. A clip that takes too long ends the process, since an exception cannot interrupt a
decoder's loop in C.
"""

import dataclasses
import json
import resource
import signal
import sys
from typing import BinaryIO

import numpy as np
from PIL import Image

from pipelines.images.square import ImageSpec, check_size, compose, encode_image, square_image
from pipelines.records.schema import BadInput
from pipelines.video.decoders import DecordError, decode_frames, display_size
from pipelines.video.probe import OutOfMemory, probe_video
from pipelines.video.sampling import FrameSampling


def main() -> None:
    """Serves requests until the input ends."""
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # The parent may ignore or block the timer's signal, and a child inherits that.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    output = sys.stdout.buffer
    sys.stdout = sys.stderr  # A library that prints must not break the protocol.
    output.write(b"ready\n")
    output.flush()
    for line in sys.stdin.buffer:
        _answer_request(json.loads(line), output)


def _answer_request(request: dict, output: BinaryIO) -> None:
    # Answer: {"size", …, "sizes": [n0, n1]}\n, then n0 and n1 bytes of encoded frames.
    header: dict
    images: list[bytes] = []
    # This timer counts all threads in fractions of a second; RLIMIT_CPU takes whole seconds only.
    signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
    try:
        header, images = sample_video(
            request["path"],
            FrameSampling(**request["sampling"]),
            ImageSpec(**request["spec"]),
            request["decoder"],
        )
    except OutOfMemory as error:
        header = {"limit": str(error)}
    except BadInput as error:
        header = {"error": str(error)}
    except DecordError as error:
        header = {"missing": str(error)}
    except MemoryError:
        header = {"limit": str(OutOfMemory())}
    signal.setitimer(signal.ITIMER_PROF, 0)
    header["sizes"] = [len(image) for image in images]
    output.write(json.dumps(header).encode() + b"\n")
    output.write(b"".join(images))
    output.flush()


def sample_video(
    path: str, sampling: FrameSampling, spec: ImageSpec, decoder: str
) -> tuple[dict, list[bytes]]:
    """Returns the answer's header ("size", "requested", "decoded", …) and the encoded frames.

    Raises:
      BadInput: if the video cannot be decoded, holds less than it declares, or has a refused size.
      DecordError: if decord is wanted and cannot be imported.
    """
    # Frames are encoded as they come, so that only one raw frame is in memory; each is decoded once
    # and then put wherever a window asks for it:
    #
    #   windows [0.0, 0.4], [0.4, 0.8]  ─▶  times 0.0 0.4 0.8  ─▶  order 0 1 1 2
    info = probe_video(path)
    if spec.aspect == "squash":  # The square shows the same, whatever the shape of a pixel.
        info = dataclasses.replace(info, pixel_ratio=1.0)
    bounds = {"min_side": spec.min_side, "max_pixels": spec.max_pixels}
    # By the declared size, before the first frame takes memory.
    check_size(*display_size(info.width, info.height, info.pixel_ratio), **bounds)
    windows = sampling.windows(info.duration)
    times = sorted({time for window in windows for time in window})  # Windows may overlap.
    decoder_used, frames = decode_frames(path, info, times, decoder)
    size, decoded, encoded, composed, is_clear = (0, 0), [], [], False, True
    for time, pixels in frames:  # Only one raw frame is in memory.
        image, has_background = _frame_over_background(pixels, spec)
        composed |= has_background
        is_clear &= pixels.shape[2] > 3 and not pixels[..., 3].any()
        size = image.size
        decoded.append(time)
        encoded.append(encode_image(square_image(image, spec), spec.encoding))
    if is_clear:
        raise BadInput("no pixel of its frames is opaque at all")
    # Back in the order of the windows; a clip that is shorter than a window repeats its frames.
    position = {time: i for i, time in enumerate(times)}
    order = [position[window[i]] for window in windows for i in sampling.loop(len(window))]
    header = {
        "size": size,
        "duration": info.duration,
        "requested": [times[i] for i in order],
        "decoded": [decoded[i] for i in order],
        "num_windows": len(windows),
        "decoder": decoder_used,
        "composed": composed,
    }
    return header, [encoded[i] for i in order]


def _frame_over_background(pixels: np.ndarray, spec: ImageSpec) -> tuple[Image.Image, bool]:
    """Returns a frame's image over the background, and whether that shows."""
    alpha = Image.fromarray(np.ascontiguousarray(pixels[..., 3])) if pixels.shape[2] > 3 else None
    image = Image.fromarray(np.ascontiguousarray(pixels[..., :3]))
    return compose(image, alpha, spec.background)


if __name__ == "__main__":
    main()
