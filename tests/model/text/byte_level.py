"""Trains tiny tokenizers with the library tokenizers, and prints what `Tokenizer` makes of them.

Run by another interpreter than the tests' (see `tests.torch_python`): `… FOLDER`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as Trained
from tokenizers import decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

from model.checkpoint.fast_tokenizer import fast_tokenizer
from model.text.tokenizer import Tokenizer

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
TEXTS = ["how many red boxes are there?", "answer en 12 cats, é and more\n", "  two  spaces"] * 9


def write_byte_level(path: Path, *, special: tuple[str, ...] = (BOS, EOS)) -> Path:
    """Writes a tokenizer as Llama 3's."""
    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=[*special], initial_alphabet=letters, show_progress=False
    )
    trained.train_from_iterator(TEXTS, trainer)
    trained.post_processor = processors.TemplateProcessing(
        single=f"{special[0]} $A", special_tokens=[(special[0], 0)]
    )
    trained.save(str(path))
    return path


def refusal(path: Path) -> str:
    """Returns the beginning of what a file is refused with."""
    try:
        Tokenizer(path)
    except ValueError as error:
        return str(error).removeprefix(f"{path} ")
    return ""


def main() -> None:
    folder = Path(sys.argv[1])
    tokenizer = Tokenizer(write_byte_level(folder / "tokenizer.json"))
    rng = np.random.default_rng(8)
    parts = ["<loc0003>", "<seg007>", "\n", "  ", "red", "1234", "é", "日本", "🙂", BOS, EOS, "\0"]
    texts = ["".join(rng.choice(parts, rng.integers(0, 9))) for _ in range(300)]
    fast = fast_tokenizer(folder / "tokenizer.json")
    released = folder / "released"
    released.mkdir()
    for name, text in fast.files.items():
        (released / name).write_text(text, encoding="utf-8")
    hub = AutoTokenizer.from_pretrained(released)
    for text in texts:
        ids = hub(text, add_special_tokens=False)["input_ids"]
        assert ids == tokenizer.encode(text), text
        assert hub.decode(ids) == text
    assert (hub.bos_token_id, hub.eos_token_id, hub.pad_token_id) == (0, 1, 1)
    words = Trained(models.WordLevel({"a": 0, "\n": 1}, unk_token="a"))
    words.save(str(folder / "words.json"))
    nameless = write_byte_level(folder / "nameless.json", special=("<what>",))
    refused = [refusal(folder / "words.json"), refusal(nameless)]
    print(
        json.dumps(
            {
                "texts": texts,
                "decoded": [tokenizer.decode(tokenizer.encode(text)) for text in texts],
                "ids": {
                    "bos": tokenizer.bos_id,
                    "eos": tokenizer.eos_id,
                    "pad": tokenizer.pad_id,
                    "newline": tokenizer.newline_id,
                },
                "newline": tokenizer.encode("\n")[0],
                "size": tokenizer.num_pieces,
                "extra": tokenizer.encode("<loc0000><seg127>"),
                "refused": [
                    text[: len(start)]
                    for text, start in zip(
                        refused,
                        ("must give every text back", "must have one of the tokens"),
                        strict=True,
                    )
                ],
            }
        )
    )


if __name__ == "__main__":
    main()
