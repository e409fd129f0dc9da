"""Batches from prepared datasets: the batch of step s is a pure function of (data, seed, s)."""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import grain
import numpy as np
from jaxtyping import Int

from infra.cores import num_cores
from model.data.config import BatchConfig
from model.data.mixing import Mixture, weights_of
from model.data.order import Order, lanes_of
from model.data.parts import open_parts
from model.data.pixels import decode_into
from model.data.sampling import choose_texts, choose_window, words_generator
from model.data.text import TextRow, fit_words, train_row
from model.masks.codec import MaskCodec
from model.masks.tokens import MaskTokens
from model.prompt.registry import PALIGEMMA
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from pipelines.records.schema import Record

Batch = dict[str, np.ndarray]

_BATCH_THREADS = 2
"""Batches made at a time: one is read and tokenised while another is decoded. With one, batches
of images take 1.4 times as long on 2 cores (measured at 2b1d276)."""
_LEAST_DECODE_THREADS = 2
_PREFETCHED_BATCHES = 3
_EXPECTED_BATCHES = 8
"""Batches whose records are requested ahead, because a new window starts with a burst of reads."""


@dataclasses.dataclass(frozen=True)
class Draw:
    """One example of a batch, as the place of its record.

    Attributes:
      part: name of the part of the data.
      position: index of the record in its part.
      visit: number of passes over the part before this one.
      number: index of the example in the stream of examples.
    """

    part: str
    position: int
    visit: int
    number: int

    @property
    def place(self) -> tuple[str, int]:
        """The part and the position, which no other record has."""
        return self.part, self.position


class Examples:
    """The endless stream of training examples of one or more datasets.

    Every pass over a part has its own shuffle (see `order`); parts are interleaved by weight. All
    examples of a batch have the same number of images: batches of pictures, batches of clips and
    batches of text alone take turns, by the same weights.

    Args:
      data: datasets, as in `StagePaths`.
      config: config of the batches.
      seeds: seeds of the stage; those of the order and the texts are used.
      image_px: least side of the stored images [pixels].

    Attributes:
      parts: the parts by name.
      num_images: images per example, one number for each shape of batches; all records of a part
        have the same number.
    """

    def __init__(
        self,
        data: str | Sequence[str],
        config: BatchConfig,
        seeds: Seeds,
        *,
        image_px: int = 1,
    ) -> None:
        self.parts = open_parts([data] if isinstance(data, str) else data, image_px)
        self._config, self._seeds = config, seeds
        sizes = {name: len(part) for name, part in self.parts.items()}
        weights = weights_of(dict(config.mixture), sizes)
        names = sorted(weights)
        self._lanes = lanes_of(config.batch_size)
        # Each part has its own order of visits; its seed comes from its place among the sorted
        # names.
        self._orders = {
            name: Order(
                len(part), part.block, _part_order_seed(seeds.order, number), lanes=self._lanes
            )
            for number, name in enumerate(names)
            for part in [self.parts[name]]
        }
        self._num_records = sum(len(self.parts[name]) for name in names)
        self._stored = {name: len(self.parts[name][0].window()) for name in names}
        # Mixed in two levels: first the batch's number of images, then the part of each example.
        by_shape: dict[int, dict[str, Fraction]] = {}
        for name, num_images in self._stored.items():
            by_shape.setdefault(min(config.max_frames, num_images), {})[name] = weights[name]
        self._shapes = Mixture(
            {n: sum(shape_weights.values(), Fraction()) for n, shape_weights in by_shape.items()}
        )
        self._mixtures = {n: Mixture(shape_weights) for n, shape_weights in by_shape.items()}
        self.num_images = tuple(sorted(by_shape))
        self._cached_draw = functools.lru_cache(maxsize=2 * _EXPECTED_BATCHES)(
            self._draw_step_examples
        )

    def __len__(self) -> int:
        """Returns the number of records that are drawn from."""
        return self._num_records

    def images_of(self, step: int) -> int:
        """Returns how many images each example of a batch has."""
        return self._shapes[step][0]

    def draws(self, step: int, rows: slice = slice(None)) -> tuple[Draw, ...]:
        """Returns the examples of one batch, or of some rows; a lane's examples are consecutive."""
        return self._cached_draw(step, rows.indices(self._config.batch_size)[:2])

    def _draw_step_examples(self, step: int, rows: tuple[int, int]) -> tuple[Draw, ...]:
        size = self._config.batch_size
        # A batch of 64 has two lanes of 32 rows. In turn t, row t and row 32 + t draw from the same
        # part, one visit after the other:
        #
        #     rows     0  1  … 31 | 32 33 … 63
        #     lane     0  0  …  0 |  1  1 …  1
        #     turn     0  1  … 31 |  0  1 … 31
        num_images, batch = self._shapes[step]
        turns = size // self._lanes
        draws = []
        for row in range(*rows):
            # At each turn, all lanes draw from the same part, one example each.
            lane, turn = divmod(row, turns)
            part, part_turn = self._mixtures[num_images][batch * turns + turn]
            visit, order = part_turn * self._lanes + lane, self._orders[part]
            draws.append(
                Draw(part, order.position(visit), visit // len(self.parts[part]), step * size + row)
            )
        return tuple(draws)

    def steps_of(self, part: str, position: int, num_steps: int) -> Iterator[int]:
        """Yields the steps whose batches have a record, in order; the inverse of `draws`.

        Args:
          part: name of the part of the data.
          position: index of the record in its part.
          num_steps: number of steps to search, from the first.
        """
        # The way of `_draw_step_examples` back: visit, the part's turn, the turn among batches of
        # its shape, step.
        turns = self._config.batch_size // self._lanes
        shapes = (n for n, mixture in self._mixtures.items() if part in mixture)
        for num_images in shapes:  # One, or none if the part is not drawn from.
            for visit in self._orders[part].visits(position):
                number = self._mixtures[num_images].number(part, visit // self._lanes)
                step = self._shapes.number(num_images, number // turns)
                if step >= num_steps:
                    break
                yield step

    def visit_counts(self, num_steps: int) -> Iterator[tuple[str, Int[np.ndarray, " N"]]]:
        """Yields each part, and how often the batches of the first steps have each of its records.

        It is the sum of `draws` over these steps; no record is read.
        """
        turns = self._config.batch_size // self._lanes
        # Lanes draw from the same part at each turn, so its visits have no gaps.
        for num_images, mixture in self._mixtures.items():
            num_turns = self._shapes.count(num_images, num_steps) * turns
            for part in filter(mixture.__contains__, self._stored):
                visits = mixture.count(part, num_turns) * self._lanes
                yield part, self._orders[part].visit_counts(visits)

    def record(self, draw: Draw) -> Record:
        """Returns the record of one example."""
        return self.parts[draw.part][draw.position]

    def expect(self, step: int, rows: slice = slice(None)) -> None:
        """Starts to fetch the records of a batch that will soon be needed; does not wait."""
        for draw in self.draws(step, rows):
            self.parts[draw.part].expect(draw.position)

    def texts(self, draw: Draw, record: Record) -> tuple[str, int]:
        """Returns the prefix that one example reads, and which suffix of the record it writes."""
        return choose_texts(
            record,
            self._config.sampling,
            seed=self._seeds.texts,
            visit=draw.visit,
            number=draw.number,
        )

    def images(self, draw: Draw, record: Record) -> tuple[bytes, ...]:
        """Returns the encoded images of one example; for a video, those of the drawn window.

        Raises:
          ValueError: if their number differs from that of the part's first record.
        """
        num_images, expected = len(record.window()), self._stored[draw.part]
        if num_images != expected:  # Possible in datasets of version 0.2.0.
            raise ValueError(
                f"record {record.id!r} of part {draw.part!r} has {num_images} images, but the "
                f"part's first record has {expected}; prepare the dataset again, which keeps them "
                f"apart."
            )
        return record.window(choose_window(record, seed=self._seeds.texts, visit=draw.visit))


def samples_of_step(
    data: str | Sequence[str], config: BatchConfig, seeds: Seeds, step: int
) -> list[tuple[str, str, str]]:
    """Returns (record id, prefix, suffix) of the examples of one update, in the batch's order.

    Masks in a suffix are still markers.
    """
    examples = Examples(data, config, seeds)
    samples = []
    for draw in examples.draws(step):
        record = examples.record(draw)
        prefix, suffix_number = examples.texts(draw, record)
        samples.append((record.id, prefix, record.suffixes[suffix_number]))
    return samples


class Loader:
    """Batches for training, prepared in the background while the device works.

    Args:
      data: datasets, as in `StagePaths`.
      config: config of the batches.
      tokenizer: tokenizer of the texts.
      mask_codec: codec of the masks; None where there are no masks.
      image_px: side of the model's images [pixels].
      seeds: seeds of the stage; those of the order and the texts are used, for windows too.
      prompt: name of the prompt template.
      host: index of this host, which makes its own rows of every batch.
      num_hosts: number of hosts that share every batch.

    Raises:
      ValueError: if the hosts do not divide the batch, or the data do not fit the config.
    """

    def __init__(
        self,
        data: str | Sequence[str],
        config: BatchConfig,
        *,
        tokenizer: Tokenizer,
        mask_codec: MaskCodec | None,
        image_px: int,
        seeds: Seeds,
        prompt: str = PALIGEMMA,
        host: int = 0,
        num_hosts: int = 1,
    ) -> None:
        if not 0 <= host < num_hosts or config.batch_size % num_hosts:
            raise ValueError(
                f"batch_size must be a multiple of num_hosts={num_hosts}, and host below that; "
                f"got batch_size={config.batch_size}, host={host}."
            )
        self.examples = Examples(data, config, seeds, image_px=image_px)
        size = config.batch_size // num_hosts
        self._rows = slice(host * size, (host + 1) * size)
        self._text_len, self._seed, self._image_px = config.text_len, seeds.texts, image_px
        self._tokenizer, self._prompt = tokenizer, prompt
        self._masks = MaskTokens(mask_codec)
        self._num_threads = max(_LEAST_DECODE_THREADS, num_cores())
        self._pool = ThreadPoolExecutor(self._num_threads)

    def batch(self, step: int) -> Batch:
        """Returns the batch of one step, or this host's rows of it.

        Keys: image uint8 (B, I, H, W, 3); text int32 (B, T+1); mask_ar, mask_loss int32 (B, T+1).
        """
        draws, records = self._records_of_step(step)
        px = self._image_px
        # Threads decode into one allocation: memory that they allocate themselves is slow to reuse.
        num_images = self.examples.images_of(step)
        images = np.empty((len(records), num_images, px, px, 3), np.uint8)
        encoded = list(map(self.examples.images, draws, records))
        # A thread gets its whole share as one task: submitting a single image costs a tenth of
        # decoding it.
        num = min(self._num_threads, len(records))
        shares = [slice(first, None, num) for first in range(num)]
        decoded = [
            self._pool.submit(_decode_example_images, images[share], encoded[share])
            for share in shares
        ]
        rows = [
            self._example_text_row(draw, record)
            for draw, record in zip(draws, records, strict=True)
        ]
        for share in decoded:
            share.result()
        return {"image": images, **stack_rows(rows)}

    def texts(self, num_steps: int) -> Iterator[Batch]:
        """Yields the batches of the first steps without their images, none of which is decoded."""

        def texts_of(step: int) -> Batch:
            draws, records = self._records_of_step(step)
            return stack_rows(list(map(self._example_text_row, draws, records)))

        yield from map(self._request_records_ahead(0, num_steps, texts_of), range(num_steps))

    def batches(
        self, start: int, stop: int, arrange: Callable[[Batch], Batch] = lambda batch: batch
    ) -> Iterator[Batch]:
        """Yields the batches of steps start..stop-1; starting late costs nothing.

        Args:
          start: first step.
          stop: end of the steps.
          arrange: applied to each batch in the background.
        """
        make = self._request_records_ahead(start, stop, lambda step: arrange(self.batch(step)))
        steps = grain.MapDataset.range(start, stop).map(make)
        options = grain.ReadOptions(_BATCH_THREADS, _PREFETCHED_BATCHES)
        yield from steps.to_iter_dataset(options)

    def close(self) -> None:
        """Stops the threads."""
        self._pool.shutdown(cancel_futures=True)

    def _request_records_ahead(
        self, start: int, stop: int, make: Callable[[int], Batch]
    ) -> Callable[[int], Batch]:
        """Returns a function that makes something of a step, and requests records of later ones."""
        # Records are requested eight batches ahead: those of the first eight now, then those of one
        # more batch whenever one is made.
        #
        #     made        -                  0    1    2
        #     requested   0 1 2 3 4 5 6 7    8    9    10
        for step in range(start, min(start + _EXPECTED_BATCHES, stop)):
            self.examples.expect(step, self._rows)

        def batch_of_step(step: int) -> Batch:
            if step + _EXPECTED_BATCHES < stop:
                self.examples.expect(step + _EXPECTED_BATCHES, self._rows)
            return make(step)

        return batch_of_step

    def _records_of_step(self, step: int) -> tuple[Sequence[Draw], list[Record]]:
        draws = self.examples.draws(step, self._rows)
        records = [self.examples.record(draw) for draw in draws]
        # Encoding of masks runs JAX, for the whole batch at once; only then are images decoded, by
        # threads, while another makes the token rows.
        self._masks.prepare({d.place: r for d, r in zip(draws, records, strict=True)})
        return draws, records

    def _example_text_row(self, draw: Draw, record: Record) -> TextRow:
        prefix, suffix_number = self.examples.texts(draw, record)
        suffix = self._masks.fill(draw.place, record, suffix_number)
        if record.task == "ocr":
            rng = words_generator(self._seed, draw.number)
            suffix = fit_words(
                self._tokenizer, prefix, suffix, self._text_len, rng, prompt=self._prompt
            )
        turns = (prefix, suffix), *record.turns
        return train_row(
            self._tokenizer,
            turns,
            self._text_len,
            prompt=self._prompt,
            has_images=bool(record.images),
        )


def stack_rows(rows: Sequence[TextRow]) -> Batch:
    """Returns the rows as arrays of one batch."""
    names = [field.name for field in dataclasses.fields(TextRow)]
    return {name: np.stack([getattr(row, name) for row in rows]) for name in names}


def _decode_example_images(pixels: np.ndarray, examples: Sequence[Sequence[bytes]]) -> None:
    for example_pixels, images in zip(pixels, examples, strict=True):
        decode_into(example_pixels, images)


def _part_order_seed(seed: int, number: int) -> int:
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
