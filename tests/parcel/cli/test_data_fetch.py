"""`parcel data fetch` of weights, from a server that speaks the Hub's protocol."""

import dataclasses
import functools
import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from model.checkpoint.folder import load_params
from model.config import ModelConfig
from tests.model.checkpoint.converted import (
    ODD,
    config_of,
    hugging_face,
    random_params,
    write_hugging_face,
)
from tests.model.checkpoint.test_convert import assert_same
from tests.model.tiny_data import write_tokenizer
from tests.parcel.cli.hub_server import TOKEN, Repository, commit_of, running_hub

SHARD = "model-00001-of-00002.safetensors"
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs",
    "README.md": b"# Tiny",
    "config.json": b'{"model_type": "paligemma"}',
    SHARD: bytes(range(256)) * 8_000,
    "model-00002-of-00002.safetensors": b"rest" * 500,
    "model.safetensors.index.json": b"{}",
    "tokenizer.model": b"pieces",
    "LICENSE": b"Terms",
    "pytorch_model.bin": b"a program",
    "original/tokenizer.model": b"another",
    "modeling_tiny.py": b"raise SystemExit",
}
FETCHED = sorted(set(FILES) - {
    ".gitattributes", "pytorch_model.bin", "original/tokenizer.model", "modeling_tiny.py"
})  # fmt: skip


@pytest.fixture
def hub(monkeypatch):
    """A Hub with one gated repository, to which the account of `HF_TOKEN` has access."""
    with running_hub() as server:
        server.repositories["lab/tiny"] = Repository(FILES, gated=True)
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield server


@pytest.fixture
def fetch(tmp_path, parcel, hub) -> Callable:
    """Runs `parcel data fetch` with a catalogue of one entry, `tiny`."""
    entry = {
        "folder": "tiny", "hub": "lab/tiny", "gated": True, "licence": "Tiny Terms",
        "licence_page": "https://lab.example/terms", "page": f"{hub.address}/lab/tiny",
    }  # fmt: skip
    (tmp_path / "catalogue.yaml").write_text(yaml.safe_dump({"tiny": entry}))
    return functools.partial(
        parcel, "data", "fetch", "--to", tmp_path / "data", "--catalogue",
        tmp_path / "catalogue.yaml",
    )  # fmt: skip


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_weights_are_fetched_by_digest_and_noted_and_the_token_goes_to_the_hub_alone(
    tmp_path, fetch, hub
):
    done = fetch("tiny", "--accept-licence")
    assert done.code == 0, done.err
    folder = tmp_path / "data/tiny"
    assert names(folder) == sorted([*FETCHED, "fetched.json"])
    for name in FETCHED:
        assert (folder / name).read_bytes() == FILES[name]
    # What lies beside them says which commit it is, and under which licence.
    notes = json.loads((folder / "fetched.json").read_text())
    assert sorted(notes) == FETCHED
    note = notes["config.json"]
    assert note["sha256"] == hashlib.sha256(FILES["config.json"]).hexdigest()
    assert note["address"] == f"{hub.address}/lab/tiny/resolve/{commit_of(FILES)}/config.json"
    assert note["licence"]["licence"] == "Tiny Terms"
    assert note["licence"]["address"] == "https://lab.example/terms"
    assert "licence: Tiny Terms" in done.out
    assert "  licence at https://lab.example/terms" in done.out.splitlines()
    # The Hub knows who asks; the CDN, which any repository may name, does not.
    assert {request.authorization for request in hub.of("hub")} == {f"Bearer {TOKEN}"}
    assert {request.authorization for request in hub.of("cdn")} == {None}
    kept = b"".join(path.read_bytes() for path in folder.iterdir())
    assert TOKEN not in done.out + done.err + kept.decode("latin-1")

    # The second time nothing is fetched, but all is read and compared.
    hub.requests.clear()
    again = fetch("tiny", "--accept-licence")
    assert again.code == 0, again.err
    assert hub.fetched() == []
    assert again.out.count("is there already") == len(FETCHED)
    (folder / SHARD).write_bytes(FILES[SHARD][::-1])
    (folder / "tokenizer.model").unlink()
    # One that was complete when the command was killed needs no server either.
    (folder / "README.md").rename(folder / "README.md.partial")
    assert fetch("tiny", "--accept-licence").code == 0
    assert hub.fetched() == [SHARD, "tokenizer.model"]
    assert (folder / SHARD).read_bytes() == FILES[SHARD]


def test_files_that_another_program_brought_are_noted_and_not_fetched(tmp_path, fetch, hub):
    folder = tmp_path / "data/tiny"
    folder.mkdir(parents=True)
    for name in FETCHED:
        (folder / name).write_bytes(FILES[name])
    assert fetch("tiny", "--accept-licence").code == 0
    assert hub.fetched() == []
    assert sorted(json.loads((folder / "fetched.json").read_text())) == FETCHED


def test_a_broken_connection_a_busy_hub_and_a_renamed_repository_cost_nothing(tmp_path, fetch, hub):
    hub.repositories["lab/new"] = hub.repositories.pop("lab/tiny")
    hub.renamed["lab/tiny"] = "lab/new"
    hub.busy, hub.breaks = [(429, "1")], [1000]
    done = fetch("tiny", "--accept-licence", "--workers", 1)
    assert done.code == 0, done.err
    assert (tmp_path / "data/tiny" / SHARD).read_bytes() == FILES[SHARD]
    ranges = [request.range for request in hub.of("cdn")]
    assert ranges[:2] == [None, "bytes=1000-"]


def test_a_killed_fetch_goes_on_where_it_was(tmp_path, fetch, hub):
    hub.hold = 1_200_000
    command = [
        sys.executable, "-m", "parcel.cli.main", "data", "fetch", "tiny", "--accept-licence",
        "--to", tmp_path / "data", "--catalogue", tmp_path / "catalogue.yaml", "--workers", "1",
    ]  # fmt: skip
    partial = tmp_path / f"data/tiny/{SHARD}.partial"
    with subprocess.Popen(command, cwd=Path(__file__).parents[3]) as process:
        while not (partial.is_file() and partial.stat().st_size):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    hub.go_on.set()
    size = partial.stat().st_size
    hub.requests.clear()
    assert fetch("tiny", "--accept-licence").code == 0
    assert f"bytes={size}-" in [request.range for request in hub.of("cdn")]
    assert (tmp_path / "data/tiny" / SHARD).read_bytes() == FILES[SHARD]
    assert "config.json" not in hub.fetched()  # It was there already.
    assert not [name for name in names(tmp_path / "data/tiny") if "partial" in name]


@pytest.mark.parametrize(
    ("words", "token", "allowed", "message"),
    [
        (
            ["tiny"],
            TOKEN,
            True,
            "tiny comes under the licence 'Tiny Terms', https://lab.example/terms: read it, and "
            "accept it with --accept-licence.",
        ),
        (
            ["lab/tiny"],
            TOKEN,
            True,
            "lab/tiny comes under the licence 'mit', https://huggingface.co/lab/tiny: read it, and "
            "accept it with --accept-licence.",
        ),
        (
            ["tiny", "--accept-licence"],
            "",
            True,
            "lab/tiny is gated: ask for access at {hub}/lab/tiny, then set HF_TOKEN to a token of "
            "that account.",
        ),
        (
            ["tiny", "--accept-licence"],
            TOKEN,
            False,
            "lab/tiny is gated, and the account of HF_TOKEN has no access: ask for it at "
            "{hub}/lab/tiny; a fine-grained token needs the right to read gated repositories, too.",
        ),
        (
            ["tiny", "--accept-licence"],
            "hf_expired",
            True,
            "The Hub does not accept HF_TOKEN, which is misspelt or expired.",
        ),
        (
            ["tiny", "--accept-licence"],
            "hf_two words",
            True,
            "HF_TOKEN must be one word of letters, digits and signs; it has others.",
        ),
        (
            ["lab/none", "--accept-licence"],
            "",
            True,
            "{hub} has no lab/none, or it is private: check the name, and that HF_TOKEN is of an "
            "account that may read it.",
        ),
        (
            ["lab/tiny@refs/pr/9", "--accept-licence"],
            TOKEN,
            True,
            "lab/tiny has no revision refs/pr/9.",
        ),
    ],
)
def test_refusals_say_what_to_do_and_fetch_nothing(
    tmp_path, fetch, hub, monkeypatch, words, token, allowed, message
):
    monkeypatch.setenv("HF_TOKEN", token)
    hub.allowed = allowed
    done = fetch(*words)
    assert done.code != 0
    assert done.err == f"parcel: {message.format(hub=hub.address)}\n"
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert hub.of("cdn") == []


def test_a_hub_that_asks_for_a_long_pause_is_not_waited_for(fetch, hub):
    hub.busy = [(429, "7200")]
    done = fetch("tiny", "--accept-licence")
    assert done.code == 1
    assert "cannot be fetched: 429 Too Many Requests" in done.err
    assert " 7200 s " in done.err
    assert len(hub.requests) == 1


def test_a_token_is_sent_to_no_server_in_clear(fetch, hub, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    done = fetch("tiny", "--accept-licence")
    assert done.code == 2
    assert re.search("HF_ENDPOINT .*https:// .*HF_TOKEN", done.err)
    assert TOKEN not in done.err
    for wrong in ("hub.example", "ftp://hub.example", "https://me:word@hub.example"):
        monkeypatch.setenv("HF_ENDPOINT", wrong)
        assert re.search("HF_ENDPOINT .*https://", fetch("lab/tiny").err)


def test_a_commit_stays_until_another_revision_is_named(tmp_path, fetch, hub):
    assert fetch("lab/tiny", "--accept-licence").code == 0
    config = tmp_path / "data/tiny/config.json"
    hub.repositories["lab/tiny"] = Repository(
        {**FILES, "config.json": b"{}"}, gated=True, earlier=[FILES]
    )
    hub.requests.clear()
    assert fetch("lab/tiny", "--accept-licence").code == 0
    assert (config.read_bytes(), hub.fetched()) == (FILES["config.json"], [])
    assert fetch("lab/tiny@main", "--accept-licence").code == 0
    assert (config.read_bytes(), hub.fetched()) == (b"{}", ["config.json"])
    # Another repository with that name would replace them.
    hub.repositories["else/tiny"] = hub.repositories["lab/tiny"]
    for name in ("else/tiny", "else/tiny@main"):
        done = fetch(name, "--accept-licence")
        assert done.code == 2
        assert re.search("else/tiny .*--to", done.err)
    done = fetch("tiny", "lab/tiny", "--accept-licence")
    assert re.match("parcel: tiny and lab/tiny .*folder tiny: ", done.err)


def test_a_dry_run_lists_files_and_sizes_without_a_token_or_a_licence(
    tmp_path, fetch, hub, monkeypatch
):
    monkeypatch.delenv("HF_TOKEN")
    lines = fetch("tiny", "--dry-run").out.splitlines()
    assert lines[0].startswith(f"tiny: {len(FETCHED)} files, 0.00 GB; gated, needs HF_TOKEN; ")
    address = f"{hub.address}/lab/tiny/resolve/{commit_of(FILES)}/{SHARD}"
    assert f"  {address} -> {tmp_path}/data/tiny/{SHARD}" in lines
    assert not (tmp_path / "data").exists()
    assert (
        "tiny: weights lab/tiny; gated, needs HF_TOKEN; licence: Tiny Terms" in fetch("--list").out
    )


def test_names_of_the_hub_stay_in_the_folder(tmp_path, fetch, hub):
    data = FILES[SHARD]
    wicked = [
        "../config.json", "/config.json", "..", "a/../../model.safetensors", "a\\config.json",
        "config.json\n", "fetched.json", "config.json.partial", "model.safetensors/../x",
    ]  # fmt: skip
    hub.repositories["lab/tiny"] = Repository({**FILES, **dict.fromkeys(wicked, data)}, gated=True)
    assert fetch("tiny", "--accept-licence").code == 0
    assert names(tmp_path) == ["catalogue.yaml", "data"]
    assert names(tmp_path / "data") == ["tiny"]
    assert names(tmp_path / "data/tiny") == sorted([*FETCHED, "fetched.json"])


@pytest.mark.parametrize(
    ("listing", "message"),
    [
        ({"sha": "../../x"}, "its commit is none of git"),
        ({"siblings": None}, "does not list lab/tiny as the Hub does"),
        ({"siblings": [{"rfilename": "config.json"}]}, "does not list lab/tiny as the Hub does"),
        (
            {"siblings": [{"rfilename": "config.json", "size": -1, "blobId": "0" * 40}]},
            "config.json has the size -1",
        ),
        (
            {"siblings": [{"rfilename": "config.json", "size": 1, "blobId": "?" * 40}]},
            "config.json has the digest git-sha1:???",
        ),
        (
            {"siblings": [{"rfilename": "pytorch_model.bin", "size": 1, "blobId": "0" * 40}]},
            "has no model.safetensors, the only weights that are read here; it has "
            "pytorch_model.bin. Another revision is named as lab/tiny@REVISION.",
        ),
        (
            {
                "siblings": [
                    {
                        "rfilename": "model.safetensors",
                        "size": 10**18,
                        "blobId": "0" * 40,
                        "lfs": {"sha256": "0" * 64},
                    }
                ]
            },
            "GB free, and 1000000000.0 GB are to be fetched: make room, or name another folder.",
        ),
    ],
)
def test_a_listing_that_cannot_be_fetched_is_refused(tmp_path, fetch, hub, listing, message):
    hub.repositories["lab/tiny"].listing = listing
    done = fetch("tiny", "--accept-licence")
    assert done.code != 0
    assert done.err.startswith("parcel: ")
    assert done.err.count("\n") == 1
    assert message in done.err
    assert hub.fetched() == []


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (FILES[SHARD] + b"more", "larger than the 2048000 bytes that it should have"),
        (FILES[SHARD][::-1], "it was changed, or damaged on its way. It is not kept"),
    ],
)
def test_other_bytes_than_listed_are_not_kept(tmp_path, fetch, hub, sent, message):
    hub.repositories["lab/tiny"].sent = {SHARD: sent}
    done = fetch("tiny", "--accept-licence")
    assert done.code == 1
    assert message in done.err
    assert not [name for name in names(tmp_path / "data/tiny") if name.startswith(SHARD)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_named_at_once(tmp_path, fetch, hub):
    folder = tmp_path / "data/tiny"
    folder.mkdir(parents=True)
    (folder / f"{SHARD}.partial").symlink_to("/dev/full")
    done = fetch("tiny", "--accept-licence")
    assert done.code == 1
    assert re.search(rf"{SHARD}\.partial .*: No space left on device", done.err)
    assert "the same command goes on" in done.err
    assert hub.fetched().count(SHARD) == 1


def test_fetched_weights_and_their_tokenizer_are_converted_until_they_are_damaged(
    tmp_path, parcel, fetch, hub
):
    model = ModelConfig(vision=ODD.vision, text=dataclasses.replace(ODD.text, vocab_size=2000))
    source = write_hugging_face(tmp_path / "hf", hugging_face(model), config_of(model))
    write_tokenizer(source / "tokenizer.model")
    files = {path.name: path.read_bytes() for path in source.iterdir()}
    hub.repositories["lab/tiny"] = Repository(files, gated=True)
    assert fetch("tiny", "--accept-licence").code == 0
    folder = tmp_path / "data/tiny"
    done = parcel("model", "convert", folder, tmp_path / "ours")
    assert done.code == 0, done.err
    assert_same(load_params(tmp_path / "ours"), random_params(model))
    assert (tmp_path / "ours/tokenizer.model").read_bytes() == files["tokenizer.model"]

    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    done = parcel("model", "convert", folder, tmp_path / "again")
    assert done.code == 2
    assert re.search(r"model\.safetensors .* sha256", done.err)
    assert not (tmp_path / "again").exists()
