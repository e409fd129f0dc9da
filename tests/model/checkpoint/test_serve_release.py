"""`transformers serve` answers with a release, at the budget that a request names."""

import base64
import io
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from model.checkpoint.torch_connector import CODE
from model.data.pixels import decode_images
from model.decode.predict import Predictor
from model.text.tokenizer import train_tokenizer
from pipelines.images.square import ImageSpec, prepare_image
from tests.model.checkpoint.releases import CONFIGS, TEXTS, release
from tests.ray_nodes import free_port
from tests.slices import day_slice
from tests.torch_python import run_torch, torch_python

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "release.md"
PIXEL = io.BytesIO()
Image.new("RGB", (1, 1)).save(PIXEL, "PNG")
ADDRESS = "data:image/png;base64," + base64.b64encode(PIXEL.getvalue()).decode()
IMAGE = {"type": "image_url", "image_url": {"url": ADDRESS}}
TEXT = {"type": "text", "text": "how many?"}


@pytest.fixture(scope="module", params=day_slice(["parcel", "own-llava"], ["own-llava"]))
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, int]]:
    """The folder of a release and its checkpoint, and the port where it is served."""
    python = torch_python("openai", "fastapi", "transformers.cli.serving")
    root, port = tmp_path_factory.mktemp("served"), free_port()
    train_tokenizer(TEXTS, str(root / "tokenizer.model"), 330)
    release(root, CONFIGS[request.param], root / "tokenizer.model")
    own = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(root / "hf"), "CUDA_VISIBLE_DEVICES": ""}
    words = [python, str(root / "release" / "serve_parcel.py"), "--port", str(port)]
    with (root / "log").open("wb") as log:
        server = subprocess.Popen(words, env=os.environ | own, stdout=log, stderr=log)
    try:
        while not _is_up(port):
            assert server.poll() is None, (root / "log").read_text()[-3000:]
            time.sleep(0.2)
        yield root, port
    finally:
        server.kill()
        server.wait()


def _is_up(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://localhost:{port}/health").status == 200
    except urllib.error.URLError:
        return False


@pytest.mark.deep
def test_the_pages_example_answers_as_predict_does(served: tuple[Path, int]):
    root, port = served
    pixels = np.random.default_rng(4).integers(0, 256, (45, 61, 4), np.uint8)
    Image.fromarray(pixels).save(root / "chart.png")  # Its transparency counts, too.
    (code,) = re.findall(r"```python\n(# ask.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    assert (":8000/" in code, "max_tokens=64" in code) == (True, True)
    changed = code.replace(":8000/", f":{port}/").replace("max_tokens=64", "max_tokens=6")
    (root / "ask.py").write_text(changed)

    stored, _ = prepare_image((root / "chart.png").read_bytes(), ImageSpec(image_px=32))
    predictor, images = Predictor(root / "checkpoint"), decode_images([stored], 1, 32)
    (question,) = re.findall(r'"text": "(.*?)"', code)
    ours = [
        predictor.answer(images, question, budget=budget, max_tokens=6).text for budget in (16, 64)
    ]
    assert run_torch(root, "ask.py") == "".join(f"{text}\n" for text in ours)
    assert len(set(ours)) == 2


@pytest.mark.deep
@pytest.mark.parametrize(
    ("settings", "content", "said"),
    [
        ({"budget": 17}, [IMAGE, TEXT], r"^budget must be one of \[.*16, 18, .*\], got 17\.$"),
        ({"budjet": 16}, [IMAGE, TEXT], r"^chat_template_kwargs may have budget .* \['budjet'\]"),
        ({}, "how many?", r"^content must be images and one text, got \['text'\]"),
        ({}, [IMAGE, TEXT, TEXT], r"^content must be images and one text, got .*'text', 'text'"),
        ({}, [{"type": "image_url", "image_url": {"url": "/etc/passwd"}}, TEXT], r" /etc/passwd"),
    ],
)
def test_a_wrong_request_is_told_in_one_line(
    settings: dict[str, Any], content: Any, said: str, served: tuple[Path, int]
):
    _, port = served
    body = {"messages": [{"role": "user", "content": content}], "chat_template_kwargs": settings}
    asked = urllib.request.Request(
        f"http://localhost:{port}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked)
    assert refused.value.code == 400
    line = json.load(refused.value)["error"]["message"]
    assert re.search(said, line)
    assert "\n" not in line


def test_without_the_servers_packages_it_says_what_to_install():
    words = [sys.executable, "-S", str(CODE / "serve_parcel.py")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "pip install 'transformers[serving]>=5.24'" in done.stderr
