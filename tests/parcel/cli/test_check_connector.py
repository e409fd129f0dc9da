"""`parcel model check`, and `parcel model flops` with a connector of one's own."""

import json
import re
from pathlib import Path

import pytest

from tests.flows.study.test_user_connectors import RIPPLE

pytestmark = pytest.mark.usefixtures("forget")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = RIPPLE.replace("from own_start import DEVIATION", "DEVIATION = 0.02")
    beyond = "\n\nclass Beyond(Ripple):\n    def __call__(self, features, **slots):\n"
    beyond += "        x = super().__call__(features, **slots)\n"
    beyond += "        return x + jnp.mean(x, axis=1, keepdims=True)\n"
    (tmp_path / "own_ripples_here.py").write_text(text + beyond)
    (tmp_path / "small.yaml").write_text(
        "base: demo\nmodel: {vision: {image_px: 112}}\nbudgets: [16]\nmethods: [parcel]\n"
        "train_budgets: {m3: [16], mqt: [16], parcel: [16]}\n"
        "connectors: {mqt: {buckets: [64]}, parcel: {buckets: [62, 64]}}\n"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_line_for_each_promise(parcel, folder: Path):
    code, out, err = parcel(
        "model", "check", "own_ripples_here.py:Ripple", "--config", "small.yaml"
    )
    assert (code, err) == (0, "")
    lines = [line.split(maxsplit=2) for line in out.splitlines()]
    assert [name for name, *_ in lines] == [
        "programs",
        "budgets",
        "dtypes",
        "images",
        "masking",
        "gradients",
        "nesting",
        "choice",
    ]
    assert {word for _, word, _ in lines} == {"ok"}
    assert lines[1][2] == "17 of 32 from 2 to 64"


@pytest.mark.slow
def test_a_broken_promise_is_exit_code_1(parcel, folder: Path):
    code, out, _ = parcel("model", "check", "own_ripples_here.py:Beyond", "--config", "small.yaml")
    assert code == 1
    (masking,) = [line for line in out.splitlines() if line.startswith("masking")]
    assert masking.split()[1] == "BROKEN"
    assert "slots beyond the budget" in masking


def test_ours_are_checked_the_same_way(parcel, folder: Path):
    code, out, _ = parcel("model", "check", "m3", "--config", "small.yaml")
    assert code == 0
    assert "masking    ok     no slot is ever masked" in out


def test_a_pair_is_named_by_family_or_published_size(parcel, folder: Path):
    code, out, err = parcel("model", "check", "m3", "--vision", "clip-l-336", "--text", "llama")
    assert (code, err) == (0, "")
    assert "budgets    ok     1, 9, 36, 144, 576\n" in out  # Of 24 x 24 patches.


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model", "check", "m3", "--vision", "clip-l"],
            "--vision must be a family, siglip, siglip2, clip, or a published size",
        ),
        (["model", "check", "m3", "--text", "gema3"], "got 'gema3'; did you mean gemma3?"),
        (
            ["model", "check", "parcel_fixed2", "--vision", "clip-b-224"],
            "must be a multiple of 8, 16 at least, for 'parcel_fixed2', got 14",
        ),
        (["model", "check", "parcl"], "NAME must be one of vanilla, m3, "),
        (["model", "check", "m3", "--torch", "no.py:X"], "--torch: there is no file no.py; name "),
        (["model", "check", "own_nothing.py:X"], "NAME: there is no file"),
        (["model", "check", "own_ripples_here.py:Nobody"], "own_ripples_here has no 'Nobody'"),
        (
            ["model", "flops", "--connector", "own_ripples_here:Nobody"],
            "--connector: own_ripples_here ",
        ),
    ],
)
def test_wrong_requests_are_told_in_a_line(parcel, folder: Path, words: list[str], told: str):
    code, _, err = parcel(*words)
    assert code == 2
    assert told in err
    assert err.count("\n") == 1


def test_the_efficiency_table_has_it(parcel, folder: Path):
    code, out, _ = parcel(
        "model", "flops", "--connector", "own_ripples_here.py:Ripple", "--budget", "64", "--json"
    )
    rows = {row["connector"]: row for row in json.loads(out) if row["modality"] == "image"}
    assert code == 0
    assert rows["own_ripples_here:Ripple"]["kv_mb"] == rows["mqt"]["kv_mb"]
    assert 1.0 < rows["own_ripples_here:Ripple"]["tflops"] / rows["mqt"]["tflops"] < 1.001


def test_the_table_of_a_study_has_its_methods(parcel, folder: Path):
    text = (folder / "small.yaml").read_text().replace("[parcel]", "['own_ripples_here.py:Ripple']")
    (folder / "small.yaml").write_text(text)
    code, out, _ = parcel("model", "flops", "small.yaml", "--budget", "4", "--parts")
    assert code == 0
    assert out.splitlines()[-1].split()[0] == "own_ripples_here:Ripple"


BROKEN = {
    "at its import": (
        "\nclass Odd(Ripple):\n    routing = Routing(sizes=(9, 30), reads='nothing')\n",
        r"routing\.sizes must be even, since training draws .*, got \[9\]\.? "
        r"\(\S*own_ripples_here\.py:LINE\)",
    ),
    "where it is made": (
        "\nclass Odd(Ripple):\n    def __init__(self, cfg, *, rngs):\n        cfg.no_such_size\n",
        r"no_such_size.* \(\S*own_ripples_here\.py:LINE\)",
    ),
    "where it is called": (
        "\nclass Odd(Ripple):\n    def __call__(self, features, **slots):\n"
        "        return features @ jnp.ones((3, 3))\n",
        r" \(\S*own_ripples_here\.py:LINE\)",
    ),
    "without its budgets": (
        "\nclass Odd:\n    says = 'none'\n",
        r"Odd\.routing must be a Routing, .*, got none\. \(\S*own_ripples_here\.py:LINE\)",
    ),
}


@pytest.mark.parametrize(("text", "told"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_class_is_named_at_the_users_own_line(parcel, folder: Path, text: str, told: str):
    file = folder / "own_ripples_here.py"
    before = file.read_text()
    file.write_text(before + text)
    code, out, err = parcel("model", "check", "own_ripples_here.py:Odd", "--config", "small.yaml")
    assert code != 0
    # The last line of the class is the one at fault; of a class without budgets it is its first.
    last = before.count("\n") + text.count("\n") - ("none" in text)
    assert re.search(told.replace("LINE", str(last)), out + err), out + err


def test_a_misspelt_class_is_told_with_the_one_that_is_meant(parcel, folder: Path):
    code, _, err = parcel("model", "check", "own_ripples_here.py:Rippel", "--config", "small.yaml")
    assert code == 2
    assert re.search(r"own_ripples_here\.py .*did you mean Ripple\?", err)
