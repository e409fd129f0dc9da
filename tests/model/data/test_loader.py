import contextlib
import dataclasses
import os
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cores import num_cores
from model.data.config import BatchConfig
from model.data.loader import Examples, Loader, samples_of_step
from model.data.parts import open_parts, records_by_id
from model.data.pixels import decode_images
from model.data.text import eval_row, fit_words, prefix_ids, train_row
from model.masks.codec import MaskCodec, init_params
from model.masks.config import MaskCodecConfig
from model.masks.tokens import MaskTokens
from model.seeds import Seeds
from model.text.tokenizer import Tokenizer
from pipelines.records import dataset
from pipelines.records.rle import encode_mask
from pipelines.records.schema import Record
from tests.model.tiny_data import color_record, mask_record, write_dataset, write_tokenizer

TRAIN = BatchConfig(batch_size=5, text_len=40, mixture=(("color", 3.0), ("segment", 1.0)))


SEEDS = Seeds.of(0)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    parts = {
        "color": [color_record(i) for i in range(7)],
        "segment": [mask_record(i) for i in range(4)],
    }
    return write_dataset(tmp_path_factory.mktemp("data") / "d", parts)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return Tokenizer(write_tokenizer(tmp_path_factory.mktemp("tok") / "t.model"))


def make_loader(
    data: str, tokenizer: Tokenizer, seed: int = 3, train: BatchConfig = TRAIN
) -> Loader:
    config = MaskCodecConfig(width=8, embed_dim=8)
    codec = MaskCodec({n: np.asarray(v) for n, v in init_params(config, 0).items()})
    return Loader(
        data, train, tokenizer=tokenizer, mask_codec=codec, image_px=32, seeds=Seeds.of(seed)
    )


def test_batches_do_not_depend_on_where_reading_starts(data: str, tokenizer: Tokenizer):
    whole = list(make_loader(data, tokenizer).batches(0, 6))
    late = list(make_loader(data, tokenizer).batches(4, 6))
    for one, other in zip(whole[4:], late, strict=True):
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])
    assert whole[0]["image"].shape == (5, 1, 32, 32, 3)
    assert whole[0]["text"].shape == (5, 41)
    assert any((whole[i]["image"] != whole[0]["image"]).any() for i in range(1, 6))


def test_samples_of_step_are_those_of_the_batch(data: str, tokenizer: Tokenizer):
    loader = make_loader(data, tokenizer)
    for step in (0, 11):
        samples = samples_of_step(data, TRAIN, Seeds.of(3), step)
        records = {r.id: r for part in loader.examples.parts.values() for r in part}
        batch = loader.batch(step)
        for (key, prefix, suffix), image, text in zip(
            samples, batch["image"], batch["text"], strict=True
        ):
            np.testing.assert_array_equal(image, decode_images(records[key].images, 1, 32))
            assert suffix in records[key].suffixes
            read = f"{prefix}\n{suffix}".partition("<mask>")[0]
            assert read in tokenizer.decode(text[1:])
    first = samples_of_step(data, TRAIN, Seeds.of(3), 0)
    assert samples_of_step(data, TRAIN, Seeds.of(4), 0) != first


def test_mixture_follows_the_weights_and_passes_cover_every_record(data: str):
    ids = [i for step in range(28) for i, _, _ in samples_of_step(data, TRAIN, SEEDS, step)]
    colors = [i for i in ids if i.startswith("color")]
    assert len(colors) / len(ids) == pytest.approx(0.75, abs=0.02)
    for start in range(0, 7 * (len(colors) // 7), 7):
        assert len(set(colors[start : start + 7])) == 7
    assert colors[:7] != colors[7:14]


@pytest.mark.parametrize(("batch_size", "num_steps"), [(6, 60), (128, 5)])
def test_steps_of_a_record_are_those_that_draw_it(tmp_path, batch_size: int, num_steps: int):
    # Not too small: a shuffle of few costs the more (grain's `index_shuffle`).
    few = {n: [color_record(i, part=n) for i in range(size)] for n, size in (("a", 150), ("b", 90))}
    clips = {"clip": [color_record(i, part="clip", images=2) for i in range(60)]}
    data = [write_dataset(tmp_path / str(i), parts) for i, parts in enumerate((few, clips))]
    config = BatchConfig(batch_size=batch_size, mixture=(("a", 2), ("b", 0.3), ("clip", 1)))
    examples = Examples(data, config, Seeds.of(3))
    saw = defaultdict(list)
    for step in range(num_steps):
        for draw in examples.draws(step):
            saw[draw.part, draw.position].append(step)
    for name in ("a", "b", "clip"):
        for position in range(0, len(examples.parts[name]), 19):
            assert list(examples.steps_of(name, position, num_steps)) == saw[name, position]
    assert list(examples.steps_of("unused", 0, num_steps)) == []


def test_hosts_share_a_batch_and_read_blocks_of_their_own(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(dataset, "MAX_BLOCK", 4)
    folder = write_dataset(tmp_path / "d", {"color": [color_record(i) for i in range(1280)]})
    train = BatchConfig(batch_size=128, text_len=12)  # Of four lanes.
    read: list[set[int]] = []

    def load(**host: int) -> list[np.ndarray]:
        loader = Loader(
            folder, train, tokenizer=tokenizer, mask_codec=None, image_px=32, seeds=SEEDS, **host
        )
        read.append(set())
        part = loader.examples.parts["color"]
        one = type(part).__getitem__

        def noted(self, position: int) -> Record:
            read[-1].add(position // part.block)
            return one(self, position)

        monkeypatch.setattr(type(part), "__getitem__", noted)
        made = [loader.batch(step)["text"] for step in range(1280 // 128)]
        monkeypatch.setattr(type(part), "__getitem__", one)
        return made

    whole = load()
    shares = [load(host=host, num_hosts=4) for host in range(4)]
    for step, batch in enumerate(whole):
        np.testing.assert_array_equal(batch, np.concatenate([share[step] for share in shares]))
    blocks = 1280 // 4
    assert len(read[0]) == blocks
    assert sum(map(len, read[1:])) <= blocks + 4
    with pytest.raises(ValueError, match=r"batch_size .*num_hosts=3"):
        load(host=0, num_hosts=3)


@pytest.mark.slow
def test_clips_and_pictures_take_turns_and_none_is_repeated(tmp_path, tokenizer):
    parts = {
        "clips": [color_record(i, images=3, part="clips") for i in range(6)],
        "color": [color_record(i) for i in range(12)],
        "pairs": [color_record(i, images=3, part="pairs") for i in range(4)],
    }
    folder = write_dataset(tmp_path / "d", parts)
    mixture = (("clips", 1.0), ("color", 3.0), ("pairs", 0.5))
    train = BatchConfig(batch_size=4, text_len=12, mixture=mixture)
    mixed = make_loader(folder, tokenizer, train=train)
    assert mixed.examples.num_images == (1, 3)
    counts = Counter[str]()
    for step in range(90):
        draws = mixed.examples.draws(step)
        counts.update(draw.part for draw in draws)
        batch = mixed.batch(step)
        assert batch["image"].shape[1] == mixed.examples.images_of(step)
        assert {draw.part for draw in draws} <= (
            {"color"} if batch["image"].shape[1] == 1 else {"clips", "pairs"}
        )
        if batch["image"].shape[1] == 1:
            # Pixels, and so losses, are those of the same records without clips beside them.
            records = [mixed.examples.record(draw) for draw in draws]
            expected = [decode_images(record.images, 1, 32) for record in records]
            np.testing.assert_array_equal(batch["image"], expected)
    assert counts == {"clips": 80, "color": 240, "pairs": 40}


def test_records_of_one_name_with_other_numbers_of_images_keep_their_own(tmp_path, tokenizer):
    pictures = [color_record(i) for i in range(6)]
    clips = [color_record(i, images=3) for i in range(6, 9)]
    mixed = write_dataset(tmp_path / "mixed", {"color": pictures, "color@3": clips})
    more = write_dataset(tmp_path / "more", {"color": [color_record(i, images=3) for i in (9,)]})
    config = BatchConfig(batch_size=2, text_len=12, mixture=(("color", 5),))
    examples = Examples([mixed, more], config, SEEDS)
    assert {name: len(part) for name, part in examples.parts.items()} == {"color": 6, "color@3": 4}
    assert examples.num_images == (1, 3)
    drawn = Counter(draw.part for step in range(50) for draw in examples.draws(step))
    assert drawn == {"color": 60, "color@3": 40}
    for step in range(10):
        for draw in examples.draws(step):
            found = examples.images(draw, examples.record(draw))
            assert len(found) == examples.images_of(step)
    unweighted = Examples([mixed, more], BatchConfig(batch_size=2), SEEDS)
    assert [unweighted.draws(step) for step in range(9)] == [examples.draws(i) for i in range(9)]
    with pytest.raises(ValueError, match=r"'color@3' .*Accepted: color\."):
        Examples([mixed], BatchConfig(mixture=(("color@3", 1),)), SEEDS)


def test_text_alone_comes_in_batches_of_its_own_as_often_as_there_is_of_it(tmp_path, tokenizer):
    # Three quarters have pictures; the others ask without one.
    pictures = [color_record(i) for i in range(9)]
    texts = [dataclasses.replace(color_record(i), images=()) for i in range(9, 12)]
    folder = write_dataset(tmp_path / "d", {"color": pictures, "color@0": texts})
    config = BatchConfig(batch_size=4, text_len=100, mixture=(("color", 1),))
    seeds = Seeds.of(3)
    loader = Loader(
        folder,
        config,
        tokenizer=tokenizer,
        mask_codec=None,
        image_px=32,
        seeds=seeds,
        prompt="llava",
    )
    assert loader.examples.num_images == (0, 1)
    drawn = Counter[str]()
    for step in range(12):
        batch, draws = loader.batch(step), loader.examples.draws(step)
        drawn.update(draw.part for draw in draws)
        num = loader.examples.images_of(step)
        assert batch["image"].shape == (4, num, 32, 32, 3)
        for row, draw in enumerate(draws):
            turns = [("which color?", loader.examples.record(draw).suffixes[0])]
            like = train_row(tokenizer, turns, 100, prompt="llava", has_images=draw.part == "color")
            np.testing.assert_array_equal(batch["text"][row], like.text)
            np.testing.assert_array_equal(batch["mask_ar"][row], like.mask_ar)
    assert drawn == {"color": 36, "color@0": 12}
    loader.close()


def test_a_part_that_mixes_numbers_of_images_is_refused(tmp_path, tokenizer):
    folder = write_dataset(tmp_path / "d", {"color": [color_record(0), color_record(1, images=3)]})
    told = (
        r"record 'color/001' of part 'color' has 3 images, but the part's first record has 1; "
        "prepare the dataset"
    )
    with pytest.raises(ValueError, match=told):
        make_loader(folder, tokenizer, train=BatchConfig(batch_size=2, text_len=12)).batch(0)


def test_each_window_is_looked_at_once_before_any_again(tmp_path, tokenizer):
    frames = [color_record(i).images[0] for i in range(3)]
    clips = [
        dataclasses.replace(color_record(i), images=tuple(f for f in frames for _ in range(2)))
        for i in range(5)
    ]
    clips = [dataclasses.replace(clip, num_windows=3) for clip in clips]
    folder = write_dataset(tmp_path / "d", {"color": clips})
    loader = make_loader(folder, tokenizer, train=BatchConfig(batch_size=5, text_len=12))
    assert loader.examples.num_images == (2,)
    passes = [loader.batch(step)["image"] for step in range(6)]
    rows = [[d.position for d in loader.examples.draws(step)] for step in range(6)]
    for start in (0, 3):
        for position in range(5):
            shown = [passes[step][rows[step].index(position)] for step in range(start, start + 3)]
            assert all((one[0] == one[1]).all() for one in shown)
            assert len({one.tobytes() for one in shown}) == 3
    again = make_loader(folder, tokenizer, train=BatchConfig(batch_size=5, text_len=12))
    np.testing.assert_array_equal(again.batch(4)["image"], passes[4])


def test_records_come_by_id_from_many_shards(tmp_path):
    parts = {
        name: [color_record(i, part="p") for i in range(start, 20, 3)]
        for start, name in enumerate("abc")
    }
    folder = write_dataset(tmp_path / "d", parts)
    ids = [record.id for record in records_by_id(open_parts([folder]))]
    assert ids == [f"p/{i:03d}" for i in range(20)]
    folder = write_dataset(tmp_path / "e", {"a": parts["a"][::-1]})
    with pytest.raises(ValueError, match=r"sorted by id .*got 'p/015' after"):
        list(records_by_id(open_parts([folder])))


def test_mask_markers_become_tokens(data: str, tokenizer: Tokenizer):
    loader = make_loader(data, tokenizer)
    texts = [tokenizer.decode(row[1:]) for step in range(4) for row in loader.batch(step)["text"]]
    masks = [text for text in texts if text.startswith("segment it\n")]
    assert masks
    for text in masks:
        assert text.count("<loc") == 4
        assert text.count("<seg") == 16
        assert "<mask>" not in text


def test_each_suffix_has_its_own_mask(tmp_path: Path, tokenizer: Tokenizer):
    one, other = mask_record(0), mask_record(4)
    other = dataclasses.replace(other, masks=(encode_mask(np.tri(32, dtype=bool)),))
    both = dataclasses.replace(
        one,
        prefixes=(("segment it",), ("and that",)),
        suffixes=(*one.suffixes, *other.suffixes),
        masks=(*one.masks, *other.masks),
    )
    train = BatchConfig(batch_size=2, text_len=40)  # Two visits: each suffix once.

    def suffixes(*records: Record) -> set[str]:
        name = "-".join(str(len(record.masks)) for record in records)
        folder = write_dataset(tmp_path / name, {"segment": list(records)})
        rows = make_loader(folder, tokenizer, train=train).batch(0)["text"]
        return {tokenizer.decode(row[1:]).partition("\n")[2] for row in rows}

    assert suffixes(both) == suffixes(one, other)


def test_two_corpora_of_one_name_have_masks_of_their_own(tmp_path: Path, tokenizer: Tokenizer):
    first, second = mask_record(0), dataclasses.replace(mask_record(4), id=mask_record(0).id)
    assert first.masks != second.masks
    train = BatchConfig(batch_size=2, text_len=40)
    folders = [
        write_dataset(tmp_path / f"{n}/d", {"segment": [record]})
        for n, record in enumerate((first, second))
    ]

    def texts(data: str | list[str], steps: int = 4) -> set[str]:
        loader = make_loader(data, tokenizer, train=train)
        rows = [row for step in range(steps) for row in loader.batch(step)["text"]]
        return {tokenizer.decode(row[1:]).partition("\n")[2] for row in rows}

    alone = [texts(folder) for folder in folders]
    assert all(len(one) == 1 for one in alone)
    # Boxes differ as well: what follows them is compared, the tokens of the mask.
    assert texts(folders) == alone[0] | alone[1]
    assert texts(folders[::-1]) == alone[0] | alone[1]


def test_masks_are_filled_in_by_place_and_not_by_name():
    config = MaskCodecConfig(width=8, embed_dim=8)
    codec = MaskCodec({n: np.asarray(v) for n, v in init_params(config, 0).items()})
    grids = np.zeros((2, 40, 40), bool)
    grids[0, 5:30, 5:30], grids[1, ::3] = True, True
    same = "<loc0000><loc0000><loc1023><loc1023><mask>"
    records = [
        dataclasses.replace(mask_record(0), suffixes=(same,), masks=(encode_mask(grid),))
        for grid in grids
    ]
    places = [("segment", 0), ("segment", 1)]
    shared, filled = MaskTokens(codec), []
    for place, record in zip(places, records, strict=True):
        shared.prepare({place: record})
    for place, record in zip(places, records, strict=True):
        alone = MaskTokens(codec)
        alone.prepare({place: record})
        filled.append(shared.fill(place, record, 0))
        assert filled[-1] == alone.fill(place, record, 0)
    assert filled[0] != filled[1]


def test_unknown_part_names_those_there_are(data: str, tokenizer: Tokenizer):
    with pytest.raises(ValueError, match=r"'vqa' .*Accepted: color, segment"):
        samples_of_step(data, BatchConfig(mixture=(("vqa", 1.0),)), SEEDS, 0)


def test_masks_without_codec_are_an_error(data: str, tokenizer: Tokenizer):
    loader = Loader(
        data, TRAIN, tokenizer=tokenizer, mask_codec=None, image_px=32, seeds=Seeds.of(3)
    )
    with pytest.raises(ValueError, match="no mask codec"):
        list(loader.batches(0, 4))


def test_train_row_layout(tokenizer: Tokenizer):
    red, sep = tokenizer.encode("red"), tokenizer.newline_id
    row = train_row(tokenizer, [("red", "red")], 9)
    text = [2, *red, sep, *red, 1]
    assert row.text.tolist() == text + [0] * (10 - len(text))
    n = 2 + len(red)
    assert row.mask_ar.tolist() == [0] * n + [1] * (10 - n)
    assert row.mask_loss.tolist() == [0] * n + [1] * (len(red) + 1) + [0] * (10 - len(text))


def test_rows_are_cut_on_the_right(tokenizer: Tokenizer):
    row = train_row(tokenizer, [("which color?", "red")], 3)
    assert row.text.shape == (4,)
    assert row.mask_loss.sum() == 0
    text, mask_input = eval_row(tokenizer, "red", 7).values()
    assert text.shape == (7,)
    assert mask_input.sum() == 2 + len(tokenizer.encode("red"))
    assert text[mask_input == 0].tolist() == [0] * int((mask_input == 0).sum())


@given(
    words=st.lists(st.sampled_from(["red", "green circle", "a", "blue"]), min_size=1),
    seed=st.integers(0, 9),
)
def test_words_read_off_a_picture_are_dropped_until_they_fit(tokenizer, words, seed):
    whole, text_len = " ".join(words), 12
    cut = fit_words(tokenizer, "ocr", whole, text_len, np.random.default_rng(seed))
    row = train_row(tokenizer, [("ocr", cut)], text_len)
    assert tokenizer.eos_id in row.text
    left = iter(whole.split(" "))
    assert all(word in left for word in cut.split(" ") if word)  # In their order.
    room = text_len - len(prefix_ids(tokenizer, "ocr"))
    if len(tokenizer.encode(whole)) <= room:
        assert cut == whole
    else:
        longest = max(len(tokenizer.encode(f" {word}")) for word in whole.split(" "))
        assert len(tokenizer.encode(cut)) > room - longest - 1  # No more than is needed.


def test_images_stored_smaller_than_the_models_are_refused(data: str, tokenizer: Tokenizer):
    told = r"data must hold images of at least 48 px, .* has 32 px\. Prepare it with .*image_px=48"
    with pytest.raises(ValueError, match=told):
        Loader(data, TRAIN, tokenizer=tokenizer, mask_codec=None, image_px=48, seeds=SEEDS)
    with pytest.raises(ValueError, match=told):
        open_parts([data], 48)
    assert open_parts([data], 32)


def test_threads_are_as_many_as_the_cores_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NPROC", raising=False)
    assert num_cores() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("NPROC", "5")
    assert num_cores() == 5
    monkeypatch.setenv("NPROC", "many")
    assert num_cores() == len(os.sched_getaffinity(0))
    data = write_dataset(tmp_path / "data", {"color": [color_record(i) for i in range(11)]})
    tokenizer = Tokenizer(write_tokenizer(tmp_path / "tokenizer.model"))
    batches = []
    for cores in ("1", "7"):
        monkeypatch.setenv("NPROC", cores)
        loader = Loader(
            data,
            BatchConfig(batch_size=5, text_len=16),
            tokenizer=tokenizer,
            mask_codec=None,
            image_px=32,
            seeds=Seeds.of(0),
        )
        with contextlib.closing(loader):
            batches.append(loader.batch(1))
            assert loader._pool._max_workers == max(2, int(cores))
    for name, array in batches[0].items():
        np.testing.assert_array_equal(array, batches[1][name])
