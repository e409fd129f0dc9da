"""Preprocessing of images and prompts for a released PARCEL checkpoint.

It is that of training for the data that are made smaller with antialiasing.
"""

import inspect
import io
import urllib.request
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image, ImageOps
from transformers import BatchFeature, ProcessorMixin

_PALIGEMMA = {"lead": None, "opening": "", "closing": None, "gap": ""}
"""The template of a release of before there were others."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Kinds of files that images in a chat may be."""


def image_of_address(address: str) -> Image.Image:
    """Returns the image that a data: address holds, with its transparency and all its bits.

    Raises:
      ValueError: if it holds none. Other addresses are refused, since who asks a server could have
        it read its own files and network.
    """
    try:
        if not address.startswith("data:"):
            raise ValueError
        with urllib.request.urlopen(address) as content:
            image = Image.open(io.BytesIO(content.read()), formats=FORMATS)
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(
            f"an image must be data:image/…;base64,… with a file of {', '.join(FORMATS)}, got "
            f"{address[:60]}."
        ) from None
    return image


class ParcelProcessor(ProcessorMixin):
    """Processor that makes the model's inputs, at a budget that each call chooses.

    Attributes:
      image_px: side of the square that images become [pixels].
      budgets: soft tokens per image that the model serves, ascending.
      image_token_id: id of the placeholder for a soft token.
      separator_id: id of a newline, a token on its own.
      prompt: how a question and images stand in a row: text between BOS and the images (`lead`;
        None puts BOS behind the images), between these and the question (`opening`), and between
        the question and its answer (`closing`; None is a newline), and what an answer begins with
        that is no part of it (`gap`).
      background: colour that shows through transparent pixels, "#rrggbb".
      aspect: "squash" stretches an image to the square; "pad" first makes it square by bars.
      pad_colour: colour of these bars, "#rrggbb".
    """

    attributes: ClassVar = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(
        self,
        tokenizer: Any = None,
        image_px: int = 224,
        budgets: list[int] | None = None,
        image_token_id: int = 0,
        separator_id: int = 0,
        prompt: dict[str, Any] | None = None,
        background: str = "#ffffff",
        aspect: str = "squash",
        pad_colour: str = "#7a7468",
        **kwargs: Any,
    ) -> None:
        self.image_px, self.budgets = image_px, budgets or []
        self.image_token_id, self.separator_id = image_token_id, separator_id
        self.prompt, self.background = prompt or _PALIGEMMA, background
        self.aspect, self.pad_colour = aspect, pad_colour
        super().__init__(tokenizer, **kwargs)

    def __call__(
        self,
        images: Any = None,
        text: str | list[str] | None = None,
        budget: int | None = None,
        **unused: Any,
    ) -> BatchFeature:
        """Returns `input_ids`, `attention_mask` and `pixel_values` as tensors.

        Args:
          images: a PIL image, or a list of them (a pair, the frames of a video), for one prompt;
            for a list of prompts, a list with one such entry per prompt.
          text: a prompt such as "answer en where is the cat?", or a list of prompts.
          budget: soft tokens per image; None takes the largest that the model serves.
          unused: further arguments that transformers' pipelines pass to every processor.

        Raises:
          ValueError: if images or text are missing, the model does not serve the budget, or
            prompts have different numbers of images.
        """
        if images is None or text is None:
            raise ValueError("images and text must both be given.")
        budget = max(self.budgets) if budget is None else budget
        if budget not in self.budgets:
            raise ValueError(f"budget must be one of {self.budgets}, got {budget!r}.")
        # A single prompt is a batch of one.
        prompts, examples = ([text], [images]) if isinstance(text, str) else (text, images)
        # A single image is a list of one.
        lists = [
            [pictures] if isinstance(pictures, Image.Image) else list(pictures)
            for pictures in examples
        ]
        if len(lists) != len(prompts) or len({len(pictures) for pictures in lists}) > 1:
            raise ValueError(
                f"images must be as many for each of the {len(prompts)} prompts, got "
                f"{[len(pictures) for pictures in lists]}."
            )
        # Padded on the left, so that every prompt ends where its answer begins:
        #
        #     <image> … <image> BOS p p p p \n         BOS l l <image> … <image> p p p p
        #     0 0 <image> … <image> BOS p p \n         0 0 BOS l l <image> … <image> p p
        soft = [self.image_token_id] * (int(budget) * len(lists[0]))
        rows = [self._row(prompt, soft) for prompt in prompts]
        longest = max(map(len, rows))
        pad = self.tokenizer.pad_token_id
        ids = [[pad] * (longest - len(row)) + row for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        pixels = np.stack([[self._pixels(image) for image in pictures] for pictures in lists])
        return BatchFeature(
            {
                "input_ids": torch.tensor(ids),
                "attention_mask": torch.tensor(mask),
                "pixel_values": torch.from_numpy(pixels),
            }
        )

    def apply_chat_template(
        self, conversation: list[dict[str, Any]], budget: int | None = None, **settings: Any
    ) -> BatchFeature:
        """Returns the tensors of a call for a question in a chat, as `transformers serve` asks it.

        Args:
          conversation: one message, of the user; its parts are {"type": "image", "url": "data:…"},
            or with a PIL image as "image", and one {"type": "text", "text": …}, the question.
          budget: soft tokens per image; None takes the largest that the model serves.
          settings: arguments of transformers' own method, which change nothing here.

        Raises:
          ValueError: if the conversation is another, an image is none, the model does not serve the
            budget, or a setting is unknown.
        """
        roles = [message["role"] for message in conversation]
        if roles != ["user"]:
            raise ValueError(f"messages must be one, of the user, got roles {roles}.")
        parts = sorted(conversation[0]["content"], key=lambda part: part["type"])
        kinds = [part["type"] for part in parts]
        if len(kinds) < 2 or kinds != ["image"] * (len(kinds) - 1) + ["text"]:
            raise ValueError(f"content must be images and one text, got {kinds}.")
        # A misspelt `budget` would else be answered at the largest one.
        unknown = {*settings} - {*inspect.signature(super().apply_chat_template).parameters}
        if unknown:
            raise ValueError(f"chat_template_kwargs may have budget alone, got {sorted(unknown)}.")
        images = [part.get("image") or image_of_address(part["url"]) for part in parts[:-1]]
        return self(images=images, text=parts[-1]["text"], budget=budget)

    def _row(self, question: str, soft: list[int]) -> list[int]:
        """Returns the tokens before an answer, with the placeholders `soft` where images stand."""
        lead, opening, closing = (self.prompt[name] for name in ("lead", "opening", "closing"))
        # The text before the images, and that behind them, are each tokenized as a whole.
        begin, asked = (
            self.tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (lead or "", f"{opening}{question}{closing or ''}")
        )
        begin = [self.tokenizer.bos_token_id, *begin]
        if closing is None:
            asked = [*asked, self.separator_id]
        return [*soft, *begin, *asked] if lead is None else [*begin, *soft, *asked]

    def decode(self, *args: Any, **kwargs: Any) -> str:
        """Returns the text of an answer's tokens, without the template's gap before it.

        Its arguments are those of the tokenizer's `decode`.
        """
        text = self.tokenizer.decode(*args, **kwargs)
        return text.strip() if self.prompt["gap"] else text

    def _pixels(self, image: Image.Image) -> np.ndarray:
        """Returns the image's pixels (3, H, W) in [-1, 1], upright and made square.

        Raises:
          ValueError: if they have 32 bits, whose range nothing states.
        """
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("I", "F"):
            raise ValueError(
                f"images must have pixels of 8 or 16 bits, got mode {upright.mode}, of 32 bits "
                f"without a stated range; convert them first."
            )
        if upright.mode.startswith("I;16"):  # Pillow would clip them to white.
            upright = Image.fromarray((np.asarray(upright) >> 8).clip(0, 255).astype(np.uint8))
        side = (self.image_px, self.image_px)
        square = upright.convert("RGB")
        if upright.has_transparency_data:  # Shown over a background, as in training.
            alpha = upright.convert("RGBA").getchannel("A")
            square = Image.new("RGB", upright.size, self.background)
            square.paste(upright.convert("RGB"), mask=alpha)
        if self.aspect == "pad":  # In the middle of a square of its longer side.
            longer = max(square.size)
            padded = Image.new("RGB", (longer, longer), self.pad_colour)
            padded.paste(square, ((longer - square.width) // 2, (longer - square.height) // 2))
            square = padded
        square.info = {}  # A JPEG's comment would be stored, too.
        if square.size != side:
            square = square.resize(side, Image.Resampling.BILINEAR)
        # Training images were stored as JPEG, so the same compression is applied here.
        stored = io.BytesIO()
        square.save(stored, "JPEG", quality=95, subsampling=0)
        with Image.open(stored) as read:
            pixels = np.asarray(read.convert("RGB"), np.float32)
        return (pixels / np.float32(127.5) - np.float32(1)).transpose(2, 0, 1)

    @property
    def model_input_names(self) -> list[str]:
        """Names of the tensors that a call returns."""
        return ["input_ids", "attention_mask", "pixel_values"]
