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
# x264's vector code is not deterministic: on one thread, the same frames gave different bytes in 2
# of some 7,000 encodings in one process, and in a tenth of them in another. With `asm=0` they never
# did (x264 core 165 in PyAV 18.1); it costs a quarter more time.
_H264_OPTIONS = {
    "preset": "veryfast",
    "crf": "18",
    "bf": "0",
    "threads": "1",
    "x264-params": "asm=0",
}
# Full-range RGB to limited-range Y'CbCr (ITU-R BT.601), in integers of 1/256. swscale is not used,
# since its rounding depends on the processor.
_RGB_TO_YUV = np.array([[66, 129, 25], [-38, -74, 112], [112, -94, -18]], dtype=np.int32)
_YUV_OFFSET = np.array([16, 128, 128], dtype=np.int32)


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
    """Writes files into a tar without times or owners, so that equal files give equal bytes."""
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
    with av.open(str(path), "w", format="mp4", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=fps, options=_H264_OPTIONS)
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
    """Returns the planes one below the other, (H * 3 / 2, W), as PyAV expects them."""
    height, width = frame.shape[:2]
    yuv = frame.astype(np.int32) @ _RGB_TO_YUV.T
    # Y of each pixel; U and V of each block of 2 x 2 pixels, hence the sum of four and a shift by
    # 10 in place of 8.
    luma = (yuv[..., 0] + 128 >> 8) + _YUV_OFFSET[0]
    quads = yuv[..., 1:].reshape(height // 2, 2, width // 2, 2, 2).sum(axis=(1, 3))
    chroma = (quads + 512 >> 10) + _YUV_OFFSET[1:]
    planes = np.concatenate([luma.ravel(), chroma[..., 0].ravel(), chroma[..., 1].ravel()])
    return planes.astype(np.uint8).reshape(height * 3 // 2, width)
