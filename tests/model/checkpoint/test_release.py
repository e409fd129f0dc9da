"""Releases: what transformers computes from one is what we compute; what cannot be released."""

import ast
import dataclasses
import functools
import io
import json
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from PIL import Image, ImageOps

from model import vlm
from model.checkpoint.array_files import BFLOAT16, read_safetensors_folder
from model.checkpoint.fast_tokenizer import fast_tokenizer
from model.checkpoint.release import write_release
from model.checkpoint.target import RequestError
from model.checkpoint.torch_connector import CODE, TorchClass, compare_checkpoint
from model.connector import budgets
from model.data.pixels import decode_images
from model.data.text import answer_text, eval_row, prefix_ids
from model.decode.generate import generate
from model.decode.predict import Predictor
from model.prompt.registry import PROMPTS
from model.prompt.template import BEFORE_IMAGES, PromptTemplate
from model.text.tokenizer import Tokenizer, train_tokenizer
from pipelines.images.square import ImageSpec, prepare_image
from tests.model.checkpoint.releases import CONFIGS, PAIRS, TEXTS, release
from tests.model.text.vocabularies import write_llama
from tests.model.tiny_models import batch, text_logits
from tests.slices import day_slice
from tests.torch_python import run_torch, torch_python

BUDGETS = (16, 64, 256)
QUESTION = "how many red cats is it?"
NUM_LEAD = 2
"""Tokens before the images, in a template that has text there."""


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pieces") / "tokenizer.model"
    train_tokenizer(TEXTS, str(path), 330)
    return path


@pytest.fixture(scope="module")
def pieces_of(pieces: Path) -> dict[str, Path]:
    """The tokenizer of each release: that of a Llama puts a space before every text."""
    llama = write_llama(pieces.with_name("llama.model"), TEXTS)
    return {name: llama if "llama" in name else pieces for name in CONFIGS}


def _texts() -> list[str]:
    """Random texts: pieces that were trained, others, `<loc…>`, separators and spaces."""
    rng = np.random.default_rng(8)
    parts = ["<loc0003>", "<loc1023><seg007>", "\n", "  ", " ", "an", "e", "red", "1234", "é", "▁",
             "日本", "\t", "🙂", ".", "how many", "cats", "aaaa", "<loc12>"]  # fmt: skip
    return ["".join(rng.choice(parts, rng.integers(1, 9))) for _ in range(300)]


@pytest.fixture(scope="module")
def computed(
    pieces_of: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict]:
    """All releases, run by torch once; and the parameters behind them."""
    torch_python()
    root = tmp_path_factory.mktemp("releases")
    params = {name: release(root / name, cfg, pieces_of[name]) for name, cfg in CONFIGS.items()}
    example = batch(num_images=2)
    arrays = {
        "lengths": [7, 10],
        "num_lead": NUM_LEAD,
        "question": QUESTION,
        "images": example.images,
        "text": example.text,
        "mask_ar": example.mask_ar,
    }
    np.savez(root / "given.npz", **arrays)
    (root / "texts.json").write_text(json.dumps(_texts()))
    pixels = np.random.default_rng(4).integers(0, 256, (45, 61, 3), np.uint8)
    Image.fromarray(pixels).save(root / "photo.png")
    Image.fromarray(np.dstack([pixels, pixels[..., :1]])).save(root / "ink.png")
    run_torch(root, str(Path(__file__).with_name("released_in_torch.py")), str(root))
    return root, params


@pytest.mark.deep
@pytest.mark.parametrize(
    "name",
    day_slice(
        [*CONFIGS],
        ["vanilla", "m3", "mqt", "parcel", "id_selection", "capped", "own", *PAIRS, "own-llava"],
    ),
)
def test_transformers_computes_what_we_do(
    name: str, computed: tuple[Path, dict], pieces_of: dict[str, Path]
):
    root, params = computed
    stop = Tokenizer(pieces_of[name]).eos_id
    cfg, example, lengths = CONFIGS[name], batch(num_images=2), (7, 10)
    structure = vlm.structure(cfg)
    found = np.load(root / name / "found.npz")
    served = set(BUDGETS) & set(budgets.supported_budgets(cfg))
    arrays = ("logits", "greedy", "loss", "shared")
    assert {f"{array}{b}" for array in arrays for b in served} == set(found)
    real = (np.arange(11)[None] < np.array(lengths)[:, None]).astype(np.int32)
    num_lead = 0 if cfg.template.lead is None else NUM_LEAD
    before = np.where(np.arange(11) < num_lead, BEFORE_IMAGES, np.zeros_like(example.mask_ar))
    asked = vlm.Prompt(example.images, example.text, real, before)
    for budget in served:
        slots = vlm.Slots(budget, budget)
        ours = text_logits(
            structure, params[name], asked._replace(mask_ar=before + example.mask_ar), slots
        )
        ours = np.asarray(ours)
        for row, length in enumerate(lengths):
            np.testing.assert_allclose(
                found[f"logits{budget}"][row, :length], ours[row, :length], atol=1e-4
            )
            if name in (*PAIRS, "own-llava"):
                error = np.abs(found[f"logits{budget}"][row, :length] - ours[row, :length]).max()
                assert error <= 1e-5 * np.abs(ours[row, :length]).max()
        learned = np.array(
            [
                (example.mask_ar[row] == 1) & (np.arange(len(example.text[row])) < length)
                for row, length in enumerate(lengths)
            ]
        )
        scores = found[f"logits{budget}"][:, :-1].astype(np.float64)
        logs = scores - np.log(np.sum(np.exp(scores), axis=-1, keepdims=True))
        picked = np.take_along_axis(logs, np.asarray(example.text)[:, 1:, None], axis=-1)[..., 0]
        total = -np.sum(picked[learned[:, 1:]])
        np.testing.assert_allclose(found[f"loss{budget}"], total / learned.sum(), rtol=1e-4)
        np.testing.assert_allclose(found[f"shared{budget}"], total / 50, rtol=1e-4)
        tokens = generate(structure, params[name], asked, slots, max_new_tokens=6, stop=stop)
        theirs = found[f"greedy{budget}"]
        np.testing.assert_array_equal(theirs, np.asarray(tokens)[:, : theirs.shape[1]])


@pytest.mark.deep
@pytest.mark.parametrize("name", ["parcel", "clip+llama"])
def test_texts_have_the_same_ids_and_come_back(
    name: str, computed: tuple[Path, dict], pieces_of: dict[str, Path]
):
    root, _ = computed
    found = json.loads((root / name / "texts_found.json").read_text())
    known = Tokenizer(pieces_of[name])
    for text, ids, decoded in zip(_texts(), found["encoded"], found["decoded"], strict=True):
        # Hugging Face puts no space before a text that begins with one; a Llama has one there.
        if name == "clip+llama" and text.startswith((" ", "▁")):
            assert ids == known.encode(text)[1:] or known.encode(text)[0] not in ids[:1]
            continue
        assert ids == known.encode(text)
        assert decoded == text.replace("▁", " ")


@pytest.mark.deep
@pytest.mark.parametrize("name", ["parcel", "clip+llama"])
def test_the_processor_makes_our_prompts_and_pixels(
    name: str, computed: tuple[Path, dict], pieces_of: dict[str, Path]
):
    root, _ = computed
    found = json.loads((root / name / "texts_found.json").read_text())
    known = Tokenizer(pieces_of[name])
    most = max(budgets.supported_budgets(CONFIGS[name]))
    # A prompt that ends in the separator's own text is still followed by one.
    for row, mask, question in zip(
        found["input_ids"], found["attention_mask"], ("answer en\n", QUESTION), strict=True
    ):
        real = [token for token, is_real in zip(row, mask, strict=True) if is_real]
        assert real == _evaluated_row(known, question, CONFIGS[name].prompt, most)
        assert mask == sorted(mask)
    theirs = np.load(root / name / "pixels.npy")
    for name, example in zip(("photo.png", "ink.png"), theirs, strict=True):
        stored, _ = prepare_image((root / name).read_bytes(), ImageSpec(image_px=32))
        ours = decode_images([stored], 1, 32).astype(np.float32) / 127.5 - 1
        np.testing.assert_array_equal(example, ours.transpose(0, 3, 1, 2))


def _evaluated_row(tokenizer: Tokenizer, question: str, prompt: str, num_soft: int) -> list[int]:
    """Returns the row that an evaluation reads, with placeholders where its images are."""
    text = prefix_ids(tokenizer, question, prompt)
    row = eval_row(tokenizer, question, len(text), prompt=prompt)
    num_lead = [*row.get("mask_ar", ())].count(BEFORE_IMAGES)
    return text[:num_lead] + [tokenizer.vocab_size] * num_soft + text[num_lead:]


@pytest.mark.deep
@pytest.mark.parametrize("name", ["clip+llama", "own-llava"])
def test_a_release_answers_as_predict_does(name: str, computed: tuple[Path, dict]):
    root, _ = computed
    found = json.loads((root / name / "texts_found.json").read_text())["answers"]
    predictor = Predictor(root / name / "checkpoint")
    stored, _ = prepare_image((root / "photo.png").read_bytes(), ImageSpec(image_px=32))
    images = decode_images([stored], 1, 32)
    assert {int(budget) for budget in found} == set(BUDGETS)
    for budget, answer in found.items():
        ours = predictor.answer(images, QUESTION, budget=int(budget), max_tokens=6)
        assert answer == ours.text
    assert len(set(found.values())) > 1


MINE = PromptTemplate(lead="", opening="Q: ", closing="\nA:", end="\n")
"""A template that no code names, whose images are directly behind BOS."""


@pytest.mark.parametrize("prompt", [*(n for n, t in PROMPTS.items() if t.reads_question), "mine"])
def test_a_release_asks_as_its_template_does(
    prompt: str, pieces_of: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(PROMPTS, "mine", MINE)
    known = Tokenizer(pieces_of["clip+llama"])
    cfg = dataclasses.replace(CONFIGS["mqt"], prompt=prompt)
    release(tmp_path, cfg, pieces_of["clip+llama"])
    read = {
        name: json.loads((tmp_path / "release" / f"{name}.json").read_text())
        for name in ("config", "processor_config")
    }
    assert read["config"]["facts"]["prompt"] == dataclasses.asdict(cfg.template)
    # transformers 5 warns of a `…_token_id` that the vocabulary does not have.
    ids = {name: value for name, value in read["config"].items() if name.endswith("_token_id")}
    assert set(ids) == {"bos_token_id", "eos_token_id", "pad_token_id"}
    assert all(0 <= value < read["config"]["text"]["vocab_size"] for value in ids.values())
    assert read["config"]["placeholder_id"] == read["processor_config"]["image_token_id"]
    settings = read["processor_config"]
    row = _released_method("_row", tokenizer=_HuggingFaceCall(known), **settings)
    for question in ("how many cats?", "is it\n", ""):
        soft = [settings["image_token_id"]] * 5
        assert row(question, soft) == _evaluated_row(known, question, prompt, 5)
    decode = _released_method("decode", tokenizer=known, **settings)
    answer = known.encode(" a red cat ")
    assert decode(answer) == answer_text(known, answer, prompt)


class _HuggingFaceCall:
    """A tokenizer as the released processor calls it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.bos_token_id, self._tokenizer = tokenizer.bos_id, tokenizer

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": self._tokenizer.encode(text)}


def _released_method(name: str, **settings: Any) -> Callable[..., Any]:
    """Returns a method of the released processor, whose module needs torch as a whole."""
    tree = ast.parse((CODE / "processing_parcel.py").read_text())
    (method,) = (
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name
    )
    space: dict[str, Any] = {"np": np, "Image": Image, "ImageOps": ImageOps, "io": io, "Any": Any}
    exec(compile(ast.Module([method], []), "processing_parcel.py", "exec"), space)
    return functools.partial(space[name], types.SimpleNamespace(**settings))


def _released_pixels(**settings: Any) -> Callable[[Image.Image], np.ndarray]:
    return _released_method("_pixels", **settings)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA", "P", "I;16", "comment", "opaque"])
@pytest.mark.parametrize("background", ["#ffffff", "#00ff00"])
@pytest.mark.parametrize("aspect", ["squash", "pad"])
def test_the_processor_shows_what_a_record_shows(mode: str, background: str, aspect: str):
    pixels = np.random.default_rng(4).integers(0, 256, (45, 61, 4), np.uint8)
    out, kind, more = io.BytesIO(), "PNG", {}
    if mode == "I;16":
        image = Image.fromarray(pixels[..., 0].astype(np.uint16) * 256 + pixels[..., 1])
    elif mode == "comment":
        image, kind, more = Image.fromarray(pixels[..., :3]), "JPEG", {"comment": b"Jane Doe"}
    elif mode == "opaque":
        image = Image.fromarray(np.dstack([pixels[..., :3], np.full((45, 61), 255, np.uint8)]))
    else:
        image = Image.fromarray(pixels).convert(mode)
        more = {"transparency": 3} if mode == "P" else {}
    image.save(out, kind, **more)
    shape = {"image_px": 32, "background": background, "aspect": aspect, "pad_colour": "#7a7468"}
    stored, _ = prepare_image(out.getvalue(), ImageSpec(**shape))
    ours = decode_images([stored], 1, 32).astype(np.float32) / 127.5 - 1
    with Image.open(out) as opened:
        theirs = _released_pixels(**shape)(opened)
    np.testing.assert_array_equal(theirs, ours[0].transpose(2, 0, 1))


@pytest.mark.parametrize("mode", ["I", "F"])
def test_the_processor_refuses_pixels_without_a_range(mode: str):
    with pytest.raises(ValueError, match=f"8 or 16 bits, got mode {mode}"):
        _released_pixels(image_px=32)(Image.new(mode, (40, 40)))


@pytest.mark.deep
def test_a_release_of_before_there_were_families_is_a_paligemma(computed: tuple[Path, dict]):
    root, _ = computed
    before = np.load(root / "before.npz")
    now = np.load(root / "parcel" / "found.npz")
    np.testing.assert_array_equal(before["logits"], now[f"logits{before['budget']}"])
    texts = json.loads((root / "parcel" / "texts_found.json").read_text())
    np.testing.assert_array_equal(before["input_ids"], texts["input_ids"])


def test_every_parameter_is_in_the_file_once(pieces: Path, tmp_path: Path):
    params = release(tmp_path, CONFIGS["parcel"], pieces, BFLOAT16)
    arrays = read_safetensors_folder(tmp_path / "release")
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert sum(int(np.prod(shape)) for shape in arrays.shapes.values()) == total
    assert arrays.dtypes == {BFLOAT16}
    ours = params["connector"]["feature_attn"]["query"]["kernel"].astype(BFLOAT16)
    np.testing.assert_array_equal(arrays["connector.feature_attn.q_proj.weight"], ours.T)


def test_a_template_without_questions_is_refused(pieces: Path, tmp_path: Path):
    aligned = dataclasses.replace(CONFIGS["mqt"], prompt="llava-plain")
    refusal = "prompt must be a template with questions to be released, got llava-plain, .* later"
    with pytest.raises(RequestError, match=refusal):
        release(tmp_path, aligned, pieces)
    assert not any((tmp_path / "release").iterdir())


def test_a_connector_of_ones_own_is_refused_before_it_is_imported(pieces: Path, tmp_path: Path):
    release(tmp_path, CONFIGS["mqt"], pieces)
    config = tmp_path / "checkpoint" / "model.json"
    config.write_text(config.read_text().replace('"mqt"', '"nowhere:Mine"'))
    out = tmp_path / "out"
    out.mkdir()
    told = r"connector\.kind must be one of .*nowhere:Mine.*--torch"
    with pytest.raises(RequestError, match=told):
        write_release(tmp_path / "checkpoint", out, np.dtype(np.float32))
    assert not any(out.iterdir())


def test_a_torch_class_is_for_a_connector_of_ones_own(pieces: Path, tmp_path: Path):
    release(tmp_path, CONFIGS["mqt"], pieces)
    author = TorchClass(file=tmp_path / "mine.py", name="Mine")
    with pytest.raises(RequestError, match=r"--torch .*got 'mqt'"):
        compare_checkpoint(tmp_path / "checkpoint", author)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"model_type": "unigram"}, "must be byte-pair encoding"),
        ({"normalization_rule_name": "nmt_nfkc"}, "without normalization"),
        ({"byte_fallback": False}, "must have a piece for each byte"),
    ],
)
def test_a_tokenizer_without_a_fast_form_is_refused(settings: dict, said: str, tmp_path: Path):
    import sentencepiece

    model = io.BytesIO()
    plain = {"model_type": "bpe", "normalization_rule_name": "identity", "byte_fallback": True}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=330, hard_vocab_limit=False,
        add_dummy_prefix=False, remove_extra_whitespaces=False, user_defined_symbols=["\n"],
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, num_threads=1, minloglevel=2, **plain | settings,
    )  # fmt: skip
    path = tmp_path / "other.model"
    path.write_bytes(model.getvalue())
    with pytest.raises(ValueError, match=said):
        fast_tokenizer(path)
