"""Pinned encoders: the same pixels give the same bytes."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import av
import numpy as np
from PIL import Image

_JPEG_QUALITY = 92
_PNG_LEVEL = 6
# Full-range RGB to limited-range Y'CbCr (ITU-R BT.601), done here and not by swscale, whose
# rounding depends on the processor's vector unit.
_RGB_TO_YUV = (
    np.array(
        [[65.481, 128.553, 24.966], [-37.797, -74.203, 112.0], [112.0, -93.786, -18.214]],
        dtype=np.float32,
    )
    / 255
)
_YUV_OFFSET = np.array([16, 128, 128], dtype=np.float32)


def jpeg_bytes(image: np.ndarray) -> bytes:
    """Returns an RGB image (H, W, 3) as JPEG without chroma subsampling."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    return buffer.getvalue()


def png_bytes(image: np.ndarray) -> bytes:
    """Returns an RGB image (H, W, 3) as PNG."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=_PNG_LEVEL)
    return buffer.getvalue()


def write_tar(path: Path, members: Iterable[tuple[str, bytes]]) -> None:
    """Writes files into a tar that tells nothing of when or by whom it was made."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            member.mode = 0o644
            tar.addfile(member, io.BytesIO(content))


def write_clip(path: Path, frames: Iterable[np.ndarray], *, fps: int) -> None:
    """Writes RGB frames (H, W, 3) as H.264 in mp4, with even sides, on one thread.

    No B-frames, so that the file needs no edit list (decord misreads some of those).
    """
    options = {"preset": "veryfast", "crf": "18", "bf": "0", "threads": "1"}
    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options=options)
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = frame.shape[:2]
                stream.pix_fmt = "yuv420p"
            picture = av.VideoFrame.from_ndarray(_to_yuv420(frame), format="yuv420p")
            picture.pts = number
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def _to_yuv420(frame: np.ndarray) -> np.ndarray:
    """Returns the planes one below the other, (H * 3 / 2, W), as PyAV takes them."""
    height, width = frame.shape[:2]
    yuv = frame.astype(np.float32) @ _RGB_TO_YUV.T + _YUV_OFFSET
    chroma = yuv[..., 1:].reshape(height // 2, 2, width // 2, 2, 2).mean(axis=(1, 3))
    planes = np.concatenate([yuv[..., 0].ravel(), chroma[..., 0].ravel(), chroma[..., 1].ravel()])
    return np.rint(planes).astype(np.uint8).reshape(height * 3 // 2, width)
