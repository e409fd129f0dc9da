"""Readers by target: each with a whole input, and a change that makes odd ones of it.

What takes long to import is imported by its target, since a process tries one.
"""

import dataclasses
import functools
import gzip
import io
import json
import random
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from pipelines.records.dataset import Dataset, DatasetInfo, PartInfo
from pipelines.records.example import encode_example
from pipelines.records.licence import Licence, LicenceRuns, licences_path
from pipelines.records.schema import Omission, Record, Reject
from pipelines.records.tfrecord import write_shard
from tests.fuzz import changes
from tests.fuzz.changes import Change

_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of bytes.

    Attributes:
      whole: an input that it reads.
      change: makes an odd input of it.
      read: reads an input.
      named: what the message of every error names.
    """

    whole: bytes
    change: Change
    read: Callable[[bytes], object]
    named: str = ""


Target = Callable[[Path], list["Reader"]]
"""Makes the readers of one kind of input, with an empty folder for their files."""


def _of_file(
    path: Path, whole: bytes, change: Change, read: Callable[[], object], named: str | None = None
) -> Reader:
    """Returns a reader of a file, which is written for each input, and is whole for others."""
    path.parent.mkdir(parents=True, exist_ok=True)

    def read_bytes(data: bytes) -> None:
        path.write_bytes(data)
        try:
            read()
        finally:
            path.write_bytes(whole)

    return Reader(
        whole=whole, change=change, read=read_bytes, named=path.name if named is None else named
    )


def config(folder: Path) -> list[Reader]:
    """Configs as files."""
    import yaml

    from flows.study.load import apply_overrides, read_study_file

    def change(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.5:
            return changes.change_bytes(rng, data)
        values = changes.change_value(rng, yaml.safe_load(data))
        return yaml.safe_dump(values).encode("utf-8", "surrogatepass")

    path = folder / "study.yaml"

    def read() -> None:
        apply_overrides(read_study_file(path), (), source=str(path))

    files = (_ROOT / "flows/study/demo.yaml", *sorted((_ROOT / "configs").glob("*.yaml")))
    wholes = [file.read_bytes() for file in files]
    # Those that name other files beside them are left out.
    alone = [whole for whole in wholes if not re.search(rb"\.py:|^base: (?!demo)", whole, re.M)]
    return [_of_file(path, whole, change, read, "") for whole in alone]


_ODD_TEXTS = (
    "", "null", "true", "-1", "0", "1e999", ".nan", ".inf", "-.inf", "[]", "{}", "[[]]", "0x",
    "2023-13-45", "2023-02-30 25:61:61", "!!python/object:os.system x", "!!binary ###", "0b2",
    "!!timestamp x", "1:61:61", "&a [*a]", "*a", "<<: 1", "{<<: [1]}", "{<<: {a: 1}, a: 2}",
    "[" * 2000, "{a: " * 1500, "x" * 100000, "9" * 5000, "\x00", "\x07", "\ud800", "a: b: c",
    "- -", "? ?", "'", '"\\x', "%YAML 9", "---\n---\n", "=", "1_000", "1e400", "{null: 1}",
    "{1: 2}", "[1, 2, 3]", "{chartqa: null}", "os:system", "no_such_module:f", "/etc/passwd:f",
    "a.py:f", "=1+1", "[vanilla, vanilla]", "{parcel: [16]}", "{'a.b': {}}", "9" * 24,
    "{? [1]: 2}", "{a: {b: c}}",
)  # fmt: skip


def overrides(folder: Path) -> list[Reader]:
    """Overrides of a config, as the command line gives them."""
    del folder
    from flows.study.load import apply_overrides, read_study_file

    values = read_study_file(_ROOT / "flows/study/demo.yaml")

    def names(value: object, above: str = "") -> Iterator[str]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield f"{above}{key}"
            yield from names(inner, f"{above}{key}.")

    keys = [*names(values), "variants.v.of", "stage2.image_px", "compute.ray_address", "watch"]
    keys += ["sources.0.reader", "prepare.num_frames", "model.vision.image_px", "transfers.x"]

    def change(rng: random.Random, data: bytes) -> bytes:
        del data
        key = rng.choice(keys).encode()
        if rng.random() < 0.1:
            key = changes.change_bytes(rng, key)
        text = rng.choice(_ODD_TEXTS).encode("utf-8", "surrogatepass")
        return key + b"=" + (changes.change_bytes(rng, text) if rng.random() < 0.2 else text)

    def read(data: bytes) -> None:
        apply_overrides(values, [data.decode("utf-8", "surrogateescape")], source="demo")

    return [Reader(whole=b"name=toy", change=change, read=read)]


def manifest(folder: Path) -> list[Reader]:
    """Manifests, looked up in a store, and what is asked of every artifact."""
    from infra.store.manifest import Input, Recipe
    from infra.store.store import Attempt, Store, manifest_name

    store = Store(folder / "store")
    recipe = Recipe(
        kind="dataset",
        name="prepare toy",
        inputs={"raw": Input(key=f"corpus-{'1' * 16}-{'2' * 8}", content="3" * 64)},
        config={"px": 7},
        code="c0de",
        seed=3,
        libraries={"numpy": "2.0"},
    )
    attempt = Attempt(store, recipe)
    (attempt.path / "part").mkdir()
    (attempt.path / "part" / "a.tfrecord").write_bytes(b"x" * 40)
    attempt.counts |= {"records": 3, "score": 1.5, "precision": "bfloat16"}
    attempt.commit({})

    def read() -> None:
        artifact = store.get(recipe.key)
        store.find(recipe.key)
        artifact.manifest.to_json()
        # What is not in the folder is not its file.
        if store.has_all_files(artifact):
            assert set(artifact.manifest.files) <= {"part/a.tfrecord"}

    path = folder / "store" / manifest_name(recipe.key)
    return [_of_file(path, path.read_bytes(), changes.change_json, read)]


def records(folder: Path) -> list[Reader]:
    """A store's other files: runs, leases, histories, source trees, its number."""
    from infra.processes.identity import ProcessIdentity
    from infra.store.disk import Disk
    from infra.store.history import read_history
    from infra.store.lease import acquire_lease, list_leases
    from infra.store.records import read_references, read_run
    from infra.store.store import Store

    place = folder / "store"
    files, key = Disk(place, durable=False), f"dataset-{'1' * 16}-{'2' * 8}"
    run = {
        "format": 2,
        "name": "toy",
        "results": key,
        "artifacts": [key],
        "finished": None,
        "failed": [],
        "config": {"seed": 1},
        "state": "running",
        "flow_run_id": "5e",
        "holes": [],
    }
    note = {
        "id": "a-1",
        "started": "2026-01-01",
        "holder": vars(ProcessIdentity.of_this_process()),
        "inputs": [key],
        "ended": "",
        "stopped": False,
        "device_seconds": 1.5,
    }
    acquire_lease(files, f"leases/{key}.json")

    def read_runs() -> None:
        read_run(files, "toy-1")
        read_references(files)

    readers = {
        "runs/toy-1.json": (json.dumps(run), read_runs),
        f"leases/{key}.json": (
            files.read(f"leases/{key}.json").decode(),
            lambda: [view.is_live() for view in list_leases(files, "leases")],
        ),
        f"artifacts/{key}/history/a-1.json": (
            json.dumps(note),
            lambda: [note.is_over for note in read_history(files, key)[0]],
        ),
        "store.json": ('{"format": 3}', lambda: Store(place)),
    }
    return [
        _of_file(place / name, whole.encode(), changes.change_json, read, "")
        for name, (whole, read) in readers.items()
    ]


def safetensors(folder: Path) -> list[Reader]:
    """Safetensors files, every tensor of which is read."""
    from model.checkpoint.array_files import read_safetensors

    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
    }
    text, path = json.dumps(header).encode(), folder / "x.safetensors"

    def read() -> None:
        arrays = read_safetensors(path)
        assert {name: array.shape for name, array in arrays.items()} == arrays.shapes

    whole = len(text).to_bytes(8, "little") + text + b"\x01" * 32
    return [_of_file(path, whole, changes.change_safetensors, read)]


def npz(folder: Path) -> list[Reader]:
    """Archives of arrays: parameters, and a codec of masks."""
    from model.checkpoint.array_files import read_npz
    from model.masks.codec import MaskCodec, init_params
    from model.masks.config import MaskCodecConfig

    codec, plain = io.BytesIO(), folder / "x.npz"
    np.savez(codec, **init_params(MaskCodecConfig(width=8), 0))  # pyright: ignore[reportArgumentType]

    def read() -> None:
        arrays = read_npz(plain)
        assert {name: array.shape for name, array in arrays.items()} == arrays.shapes

    masks = folder / "mask_codec.npz"
    return [
        _of_file(plain, changes.small_npz(), changes.change_npz, read),
        _of_file(masks, codec.getvalue(), changes.change_npz, lambda: MaskCodec.load(masks)),
    ]


def checkpoint(folder: Path) -> list[Reader]:
    """A checkpoint's small files: the config, the parameters' index, the tokenizer."""
    from model.checkpoint.config_json import config_to_json
    from model.checkpoint.folder import load_config, params_of
    from model.checkpoint.params_files import put_into, write_arrays
    from model.files import CONFIG, DIGEST, PARAMS, TOKENIZER
    from model.text.tokenizer import Tokenizer, train_tokenizer
    from tests.model.tiny_model import tiny_model

    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.ones((2, 3), np.float32)}
    index = write_arrays(arrays, put_into(folder))
    (folder / DIGEST).write_text("0" * 64)
    train_tokenizer(["a cat", "two dogs", "answer en is it red?"], str(folder / TOKENIZER), 300)

    def read_params() -> None:
        arrays = params_of(str(folder)).arrays
        assert {path: array.shape for path, array in arrays.items()} == arrays.shapes

    tokens, change = (folder / TOKENIZER).read_bytes(), changes.change_json
    config_text, index_text = config_to_json(tiny_model()).encode(), json.dumps(index).encode()
    return [
        _of_file(folder / PARAMS, index_text, change, read_params, ""),
        _of_file(folder / CONFIG, config_text, change, lambda: load_config(str(folder))),
        _of_file(
            folder / TOKENIZER,
            tokens,
            changes.change_bytes,
            lambda: Tokenizer(folder / TOKENIZER).encode("a cat"),
        ),
    ]


def _write_dataset(folder: Path) -> None:
    """Writes a small dataset with every file that one may have."""
    licence = Licence(licence="CC-BY-4.0", holder="me")
    written = [
        Record(
            id=f"web/{n}",
            images=(b"\xff\xd8abc", b"x"),
            prefix="caption en",
            suffixes=("y", "z"),
            task="caption",
            source="s.jpg",
            source_sha256="0" * 64,
            answers=("one", "two"),
            frame_requested=(0.5,),
            frame_decoded=(0.4,),
            meta={"kind": "human"},
            licence=licence,
            prefixes=(("a",), ("b", "c")),
        )
        for n in range(4)
    ]
    folder.mkdir()
    shard = folder / "p-00000-of-00001.tfrecord"
    write_shard(shard, map(encode_example, written))
    runs = LicenceRuns()
    runs.add(licence, len(written))
    licences_path(shard).write_bytes(runs.to_json())
    DatasetInfo(
        name="toy",
        parts={"p": PartInfo(shards=(shard.name,), num_records=(len(written),))},
        num_inputs=5,
        num_rejected=1,
        image_px=8,
        licences=runs.counts,
    ).write(folder)
    reject = Reject(id="web/9", stage="decode", reason="empty file", source="s")
    (folder / "rejects.jsonl").write_text(f"{reject.to_json()}\n")
    omission = Omission(source="a.tar", reason="members without an extension", num=2, example="a")
    (folder / "omissions.jsonl").write_text(f"{omission.to_json()}\n")


def dataset(folder: Path) -> list[Reader]:
    """Prepared datasets: records, indexes, descriptions, licences, rejects."""
    from pipelines.hygiene.matches import MATCHES, read_matches

    _write_dataset(folder / "toy")
    match = {"id": "a", "kind": "duplicate", "match": "b", "dataset": "", "likeness": 0.9}
    (folder / "toy" / MATCHES).write_text(json.dumps(match | {"exact": True}) + "\n")

    def read() -> None:
        opened = Dataset(folder / "toy")
        for _ in opened.records():
            pass
        for part in opened.parts:
            list(opened.licences(part))
        for _ in (*opened.rejects(), *opened.omissions(), *read_matches(folder / "toy")):
            pass

    kinds = {
        ".tfrecord": changes.change_frames,
        ".idx": changes.change_bytes,
        ".jsonl": changes.change_lines,
        ".json": changes.change_json,
        ".licences": changes.change_json,
    }
    # `dataset.json` may name another shard, which is then what is missing.
    return [
        _of_file(
            path,
            path.read_bytes(),
            kinds[path.suffix],
            read,
            "toy" if path.name == "dataset.json" else path.stem,
        )
        for path in sorted((folder / "toy").iterdir())
    ]


def _corpus(
    folder: Path, source: str, name: str, whole: bytes, change: Change, **options: Any
) -> Reader:
    """Returns the reader of a corpus of one file, in which whatever is wrong is a reject."""
    from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
    from pipelines.sources.registry import source_spec

    spec = source_spec(source)
    root = folder / name

    def read() -> None:
        corpus = Corpus(root, spec.folder, UnpackedMedia(io.BytesIO(), "x"), **options)
        for _ in spec.read_splits(corpus, spec.splits[0]):
            pass

    return _of_file(root / spec.folder / name, whole, change, read)


def frames(folder: Path) -> list[Reader]:
    """TFRecord files of others, plain and packed."""
    _write_dataset(folder / "toy")
    plain = next((folder / "toy").glob("*.tfrecord")).read_bytes()
    change, features = changes.change_frames, {"image": "image", "caption": "prefix"}
    packed = gzip.compress(plain), changes.change_gzip(change)
    return [
        _corpus(folder, "tfrecord", "x.tfrecord", plain, change, features=features),
        _corpus(folder, "tfrecord", "packed.tfrecord", *packed, features=features),
    ]


def archives(folder: Path) -> list[Reader]:
    """Archives of web corpora, plain and packed."""
    tar = changes.small_tar(
        {
            "1.jpg": b"\xff\xd8" + b"x" * 600,
            "1.txt": b"a cat",
            "1.json": b'{"width": 3, "url": "u"}',
            "2.png": b"\x89PNG" + b"x" * 100,
            "2.txt": "zwei Köter".encode(),
            ".hidden": b"x",
        }
    )
    packed = gzip.compress(tar), changes.change_gzip(changes.change_tar)
    return [
        _corpus(folder, "web", "0.tar", tar, changes.change_tar),
        _corpus(folder, "web", "0.tar.gz", *packed),
    ]


def tables(folder: Path) -> list[Reader]:
    """Tables of web corpora: parquet, lines of JSON, and cells between tabs."""
    pictures = [{"bytes": b"\xff\xd8" + bytes([n]) * 90, "path": None} for n in range(6)]
    captions, out = [f"cat {n}" for n in range(6)], io.BytesIO()
    parquet.write_table(pa.table({"image": pictures, "caption": captions}), out)
    lines = "".join(f'{{"image": "{n}.jpg", "text": "cat {n}", "width": 3}}\n' for n in range(6))
    cells = "".join(f"cat {n}\t{n}.jpg\n" for n in range(6))
    return [
        _corpus(folder, "web", "x.parquet", out.getvalue(), changes.change_parquet),
        _corpus(folder, "web", "x.jsonl", lines.encode(), changes.change_lines),
        _corpus(folder, "web", "x.tsv", cells.encode(), changes.change_bytes),
    ]


def downloads(folder: Path) -> list[Reader]:
    """Archives that `parcel data fetch` unpacks."""
    from pipelines.fetch.fetch import unpack_archive

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo("a/b.txt"), b"text" * 50)
    tar = changes.small_tar({"a/b.txt": b"text" * 50, "c": b""})

    def reader(name: str, whole: bytes, change: Change) -> Reader:
        root = folder / name

        def read(data: bytes) -> None:
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            (root / name).write_bytes(data)
            unpack_archive(root / name, root / "out")
            assert {path.name for path in root.iterdir()} == {"out"}

        return Reader(whole=whole, change=change, read=read, named=name)

    packed = gzip.compress(tar), changes.change_gzip(changes.change_tar)
    return [
        reader("x.zip", out.getvalue(), changes.change_zip),
        reader("x.tar", tar, changes.change_tar),
        reader("x.tar.gz", *packed),
    ]


def scores(folder: Path) -> list[Reader]:
    """The artifact of an evaluation's scores: the table of items, and the score."""
    from flows.report.items_reader import ItemsReader
    from model.eval.items_file import ItemsFile, write_items
    from model.eval.score_json import read_score
    from model.files import ITEMS, SCORE

    rows = [
        {
            "id": f"{n}",
            "prefix": "p",
            "prediction": "a",
            "answers": ["a", "b"],
            "source": "s",
            "source_sha256": f"{n % 3}",
            "score": n / 7,
        }
        for n in range(7)
    ]
    write_items(folder, rows)
    (folder / SCORE).write_text('{"metric": "exact", "score": 42.85, "num": 7}')

    def read() -> None:
        score = read_score(folder / SCORE)
        items = ItemsFile(folder)
        ItemsReader().of_scores(folder, score["score"])
        items.row("3")
        items.spread(4)
        items.columns("id", "answers")

    return [
        _of_file(folder / ITEMS, (folder / ITEMS).read_bytes(), changes.change_parquet, read),
        _of_file(folder / SCORE, (folder / SCORE).read_bytes(), changes.change_json, read),
    ]


def predictions(folder: Path) -> list[Reader]:
    """Files of predictions, a user's by every metric that reads texts, and ours."""
    from flows.report.items import guess_rows
    from model.eval.metrics.registry import METRICS, get_metric
    from model.eval.predictions_file import read_predictions
    from model.eval.score_file import as_json, score_file
    from model.files import PREDICTIONS

    row = {
        "id": "a",
        "prefix": "p",
        "prediction": "12.5 %",
        "lang": "en",
        "kind": "human",
        "answer_type": "number",
        "question_type": "what",
        "issimple": True,
        "question": "q",
        "options": ["one", "two"],
        "box": [0.1, 0.2, 0.3, 0.4],
        "masks": [{"size": [4, 4], "counts": [3, 5, 8]}],
        "source": "s",
        "source_sha256": "0" * 64,
        "score": 1.0,
    }

    def lines(*answers: str) -> bytes:
        rows = (row | {"id": str(n), "answers": answers} for n in range(4))
        return b"\n".join(json.dumps(fields).encode() for fields in rows)

    answers = {
        "vqav2": ("12.5", "13"),
        "science_qa": ("The answer is A.",),
        "nlvr": ("True",),
        "pope": ("yes",),
        "pope_big_vision": ("no",),
        "mme": ("yes",),
        "mmbench": ("A",),
        "mmmu": ("B",),
    }
    path, users = folder / PREDICTIONS, folder / "users.jsonl"

    def read() -> None:
        for _ in (*read_predictions(folder), *guess_rows(folder, ("id", "score"))):
            pass

    def reader(metric: str) -> Reader:
        def read() -> None:
            json.loads(as_json(score_file(metric, users)).encode())

        whole = lines(*answers.get(metric, ("12.5",)))
        return _of_file(users, whole, changes.change_lines, read)

    metrics = [name for name in METRICS if not get_metric(name).reads_masks]
    ours = _of_file(path, lines("a", "b"), changes.change_lines, read)
    return [*map(reader, metrics), *[ours] * len(metrics)]


def published(folder: Path) -> list[Reader]:
    """Score files as papers publish them, and our own table as JSON."""
    from flows.report.json_file import read_json, to_json
    from flows.report.scores_file import COLUMNS, read_scores

    lines, path = [",".join(COLUMNS)], folder / "x.csv"
    for budget in (16, 64):
        lines += [
            f"documents,DocVQA (val),224,{budget},{m},41.2,0.3,43.7" for m in ("parcel", "m3")
        ]
    path.write_text("\n".join(lines))
    report = to_json(read_scores(path)).encode()
    return [
        _of_file(path, path.read_bytes(), changes.change_csv, lambda: to_json(read_scores(path))),
        Reader(
            whole=report,
            change=changes.change_json,
            read=lambda data: read_json(data.decode("utf-8", "surrogateescape")),
        ),
    ]


def item_logs(folder: Path) -> list[Reader]:
    """Item logs of other systems."""
    from flows.logs import every_eval_ever, lmms_eval
    from flows.logs.settings import check_settings, settings_notes
    from tests.flows.logs.lmms_logs import state_all, write_logs
    from tests.flows.logs.test_every_eval_ever import write_evaluation

    scores = [1.0, 0.0, 0.5]
    lines = next(write_logs(folder / "lmms", "a", scores).glob("*.jsonl"))
    stated = next(write_logs(folder / "stated", "a", scores, change=state_all).glob("*.jsonl"))
    results = next(stated.parent.glob("*_results.json"))
    whole = lmms_eval.read_log(stated)

    def read_results() -> None:
        logs = [whole, lmms_eval.read_log(stated)]
        check_settings(logs)
        settings_notes({whole.task: logs})

    evaluation = write_evaluation(folder / "evaluation") / "3f9a.json"
    samples = write_evaluation(folder / "samples") / "3f9a_samples.jsonl"

    def reader(module: Any, path: Path, change: Change, named: str | None = None) -> Reader:
        def read() -> None:
            module.read_log(path)

        return _of_file(path, path.read_bytes(), change, read, named)

    return [
        reader(lmms_eval, lines, changes.change_lines),
        reader(every_eval_ever, samples, changes.change_lines),
        _of_file(
            evaluation,
            evaluation.read_bytes(),
            changes.change_json,
            lambda: every_eval_ever.read_log(evaluation.with_name("3f9a_samples.jsonl")),
        ),
        # Errors of the mean name the file of items, those of settings both.
        _of_file(results, results.read_bytes(), changes.change_json, read_results, named=""),
    ]


def accounts(folder: Path) -> list[Reader]:
    """Folders, tables and clips of which every row is accounted; an input is the seed of one."""
    from tests.fuzz.accounts import DRAWN

    def read(data: bytes, draw: Callable[[random.Random, Path], None]) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as root:
            draw(random.Random(data), Path(root))

    seed: Any = {"whole": b"15", "change": lambda rng, _: rng.randbytes(8)}
    return [Reader(read=functools.partial(read, draw=draw), **seed) for draw in DRAWN]


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (
        config, overrides, manifest, records, safetensors, npz, checkpoint, dataset, frames,
        archives, tables, downloads, scores, predictions, published,
        item_logs, accounts,
    )
}  # fmt: skip
