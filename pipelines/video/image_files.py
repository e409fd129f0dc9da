"""Files of images or a video -> the images that a record of them would hold.

They are processed as those of records: decoded, turned upright, made the model's square, stored as
JPEG of quality 95 and read back by the loader. So a file gives the pixels that its record
would.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image, UnidentifiedImageError

from infra.errors import ConfigError
from pipelines.images.square import FORMATS, ImageSpec, prepare_image, unread_format
from pipelines.records.schema import BadInput
from pipelines.sources.reading.spec import SourceSpec
from pipelines.sources.registry import source_spec
from pipelines.video.client import VideoChild, VideoLimits
from pipelines.video.sampling import FrameSampling


def prepare_image_files(
    paths: Sequence[str],
    image_px: int,
    *,
    source: str | None = None,
    frames: int | None = None,
    stride: int | None = None,
    **shape: Any,
) -> tuple[bytes, ...]:
    """Returns images, or the frames of a video, as a record of them would hold them.

    Args:
      paths: image files, or one video.
      image_px: side of the square [pixels].
      source: source whose records set the resize filter and the frames; None takes "images" or
        "videos".
      frames: number of frames of a video; None takes the source's.
      stride: distance of the frames at 25 a second [frames]; None takes the source's.
      shape: `background`, `aspect` and `pad_colour` of `ImageSpec`.

    Raises:
      ConfigError: if a file is missing or unreadable, or a video is one of several files, or what
        `shape` says is not accepted.
    """
    try:
        # The source decides the resize filter, so it must be known before any file is prepared.
        video = [path for path in paths if not _is_image(path)]
        if video and len(paths) > 1:
            raise ConfigError(f"a video must be alone, got {video[0]} among {len(paths)} files.")
        spec = source_spec(source or ("videos" if video else "images"))
        stored = ImageSpec(image_px=image_px, antialias=spec.antialias, **shape)
    except OSError as error:
        raise ConfigError(
            f"images must be readable files, got {error.filename}: {error.strerror}."
        ) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if video:
        return _sample_frames(paths[0], spec, stored, frames, stride)
    return tuple(_prepare_image_file(path, stored) for path in paths)


def _is_image(path: str) -> bool:
    try:
        with Image.open(path, formats=FORMATS):
            return True
    except UnidentifiedImageError:
        with open(path, "rb") as file:  # HEIC is a container that FFmpeg would take for a video's.
            return bool(unread_format(file.read(64)))
    except (ValueError, SyntaxError, Image.DecompressionBombError):
        return True  # An image, though a bad one: `_prepare_image_file` says what is wrong with it.


def _prepare_image_file(path: str, spec: ImageSpec) -> bytes:
    try:
        return prepare_image(Path(path).read_bytes(), spec)[0]
    except BadInput as error:
        raise ConfigError(f"image {path} is refused: {error}.") from None


def _sample_frames(
    path: str, source: SourceSpec, spec: ImageSpec, frames: int | None, stride: int | None
) -> tuple[bytes, ...]:
    # A child as in preparation, with its limits: the frames are those that a record would have.
    child = VideoChild(VideoLimits())
    try:
        sampling = FrameSampling(
            num_frames=frames if frames is not None else source.num_frames,
            stride=stride if stride is not None else source.frame_stride,
        )
        return child.sample(str(Path(path).absolute()), sampling, spec).images
    except BadInput as error:
        raise ConfigError(
            f"image {path} is neither an image ({', '.join(FORMATS)}) nor a video: {error}."
        ) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    finally:
        child.close()
