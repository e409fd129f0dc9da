"""Inputs of many rows as strangers leave them, drawn: in = written + rejected + named.

What was drawn is read by its format's own library, never by the project's readers. A folder may be
refused only for a mark or a list that cannot be followed.
"""

import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyarrow import feather, parquet

from pipelines.records.schema import Reject
from pipelines.sources.reading.corpus import Corpus, UnpackedMedia
from pipelines.sources.reading.item import Item
from pipelines.sources.registry import source_spec

Row = dict[str, Any]
_CLASSES: dict[Any, str] = {0: "de", 1: "fr", 2: "zh-Hans"}
_STATED = ("de", "zh%2DHans", "__HIVE_DEFAULT_PARTITION__", "", "%66r")
_HIVE = ("a", *(f"{name}={value}" for name in ("LANGUAGE", "LANGUAG%45") for value in _STATED))
_MARKS = ("_delta_log/0.json", "metadata/v1.metadata.json", ".hoodie/x", "_versions/1.manifest")


class _Listing:
    """What a source makes of a folder: items, rejects, and how many things it names."""

    def __init__(self, root: Path, source: str, split: str = "train") -> None:
        spec = source_spec(source)
        corpus = Corpus(root, spec.folder, UnpackedMedia(io.BytesIO(), "x"))
        found = list(spec.read_splits(corpus, split))
        self.items = [entry for entry in found if isinstance(entry, Item)]
        self.rejects = [entry for entry in found if isinstance(entry, Reject)]
        self.omissions = [*corpus.omissions(), *spec.omissions_of(corpus, split)]

    def named(self, reason: str) -> int:
        return sum(omission.num for omission in self.omissions if reason in omission.reason)


def _write_table(rng: random.Random, path: Path) -> None:
    size, features = rng.randrange(1, 5), dict[str, Row]()
    cells = {"caption": pa.array([f"cat {path.stem} {n}" for n in range(size)])}
    cells["path"] = pa.array([f"{n}.png" for n in range(size)])
    if rng.random() < 0.3:
        kind = rng.choice((pa.int8(), pa.int64()))
        cells["LANGUAGE"] = pa.array(rng.choices((0, 1, 2, None, -1), k=size), kind)
        features["LANGUAGE"] = {"names": [*_CLASSES.values()], "_type": "ClassLabel"}
    if rng.random() < 0.4:
        number = rng.choice((pa.float16(), pa.float32(), pa.float64()))
        pair = pa.struct({"question": pa.string(), "answer": number})
        answers = rng.choices((0.1, 2.0, 0.7, 16384.0), k=size)
        cells["qa"] = pa.array([[{"question": "q", "answer": n}] for n in answers], pa.list_(pair))
    table = pa.table(cells, metadata={"huggingface": json.dumps({"info": {"features": features}})})
    if path.suffix == ".parquet":
        parquet.write_table(table, path, row_group_size=rng.choice((1, 2, 100)))
    else:
        feather.write_feather(table, str(path))


def folders(rng: random.Random, root: Path) -> None:
    """Tables in folders with lists of their own, hive names, caches and marks."""
    refused, left_out, drawn = False, set[Path](), list[Path]()
    for place in range(rng.randrange(1, 4)):
        folder = root.joinpath("web", *rng.sample(_HIVE, rng.randrange(3)), f"p{place}")
        folder.mkdir(parents=True)
        forms = rng.choices((".parquet", ".arrow"), k=rng.randrange(1, 4))
        own = [folder / f"t{place}{number}{form}" for number, form in enumerate(forms)]
        caches = [folder / "cache-0ff.arrow"] * (rng.random() < 0.2)
        for path in own + caches:
            _write_table(rng, path)
        drawn, left_out = drawn + own + caches, left_out.union(caches)
        if rng.random() < 0.3:
            names = [path.name for path in own + caches]
            listed = rng.sample([*names, "gone"], rng.randrange(len(names) + 1))
            index = {"shards": [{"raw_data": {"basename": n}, "zip_data": None} for n in listed]}
            state = {"_data_files": [{"filename": n} for n in listed]}
            name, content = rng.choice((("index.json", index), ("state.json", state)))
            (folder / name).write_text(json.dumps(content))
            left_out -= {folder / name for name in listed}
            left_out |= {folder / name for name in names if name not in listed}
            refused |= "gone" in listed or name == "index.json"
        if rng.random() < 0.05:
            mark, refused = folder / rng.choice(_MARKS), True
            mark.parent.mkdir(exist_ok=True)
            mark.write_text("{}")
    refused |= len(left_out) == len(drawn)
    try:
        listing = _Listing(root, "web")
    except (ValueError, OSError):
        if refused:
            raise
        raise AssertionError("refused for no reason") from None
    assert not refused, "read, though its list cannot be followed"
    whole = {omission.source for omission in listing.omissions if not omission.example}
    for path in drawn:
        source = path.relative_to(root).as_posix()
        items = [item for item in listing.items if item.id.startswith(f"{source}/")]
        num_rejects = len({r.id for r in listing.rejects if r.id.startswith(f"{source}/")})
        written = {item.suffixes[0]: item.lang for item in items if item.task == "caption"}
        data = pyarrow.dataset.dataset(path, format=path.suffix[1:])
        rows = [] if path in left_out else data.to_table().to_pylist()
        assert (source in whole) == (path in left_out), source
        assert written == _expected(rows, source), (source, written)
        assert num_rejects + len(written) == len(rows), source
        numbers = [r["qa"][0]["answer"] for r in rows if "qa" in r and r["caption"] in written]
        answers = [item.answers[0] for item in items if item.task == "vqa"]
        for number, text in zip(numbers, answers, strict=True):
            assert len(text) <= 5, (source, text)  # Not 0.10000000149.
            assert abs(float(text) - number) < 1e-3, (source, text, number)


def _expected(rows: list[Row], source: str) -> dict[str, str]:
    """Returns caption -> language, for rows that agree with all of their folders."""
    hive = pyarrow.dataset.HivePartitioning(pa.schema({"LANGUAGE": pa.string()}))
    keys = (pyarrow.dataset.get_partition_keys(hive.parse(f"{f}/")) for f in source.split("/"))
    stated = {key.get("LANGUAGE") or None for key in keys}
    of_row = {r["caption"]: {*stated, _CLASSES.get(r.get("LANGUAGE"))} - {None} for r in rows}
    return {text: min(langs, default="en") for text, langs in of_row.items() if len(langs) < 2}


def tabs(rng: random.Random, root: Path) -> None:
    """Tables with tabs, of two columns or more, with names of columns or none."""
    names = rng.choice((["caption", "path"], ["alt", "url"], ["text", "image", "score"], [], []))
    rows = [names] * bool(names)
    for n in range(rng.randrange(1, 5)):
        pair = [rng.choice(("cat", "see x://y there")), f"{rng.choice(('', 'x://y/'))}{n}.png"]
        is_turned = pair[1][0] == "x" and not names and rng.random() < 0.5
        rows.append(pair[:: -1 if is_turned else 1] + rng.choice(([], [""], ["0.3"])))
    (root / "web").mkdir()
    (root / "web/x.tsv").write_text("\n".join(map("\t".join, rows)))
    (root / "web/1.png").write_bytes(b"")
    listing = _Listing(root, "web")
    num = len(rows) - (names[:1] in (["caption"], ["text"]))  # Others may be a caption and a path.
    assert len(listing.items) + len(listing.rejects) == num, (rows, listing.rejects)
    cells = {(x, f"web/{y.rpartition('/')[2]}") for r in rows for x, y in (r[:2], r[1::-1])}
    assert cells >= {(item.suffixes[0], item.media[0].path) for item in listing.items}, rows


def downloads(rng: random.Random, root: Path) -> None:
    """What img2dataset writes as files or as parquet, with failed rows."""
    as_files, written, rows = rng.random() < 0.5, dict[str, str](), list[Row]()
    (root / "web/0").mkdir(parents=True)
    for key in (f"{number:09d}" for number in range(rng.randrange(1, 6))):
        status = rng.choice(("success", "success", "failed_to_download"))
        row: Row = {"key": key, "caption": f"cat {key}", "url": f"http://x/{rng.choice('ab')}.png"}
        rows.append(row | {"status": status, "error_message": None})
        form = rng.choice(("jpg", "png", "webp"))
        if not as_files:
            rows[-1]["jpg"] = b"x" if status == "success" else None
        elif status == "success":
            (root / f"web/0/{key}.{form}").write_bytes(b"x")
            (root / f"web/0/{key}.json").write_text(json.dumps(rows[-1]))
        if status == "success":
            written[row["caption"]] = (
                f"web/0/{key}.{form}" if as_files else f"web/0.parquet/{key}.jpg"
            )
    parquet.write_table(pa.Table.from_pylist(rows), root / "web/0.parquet")
    (root / "web/0_stats.json").write_text("{}")
    listing, num = _Listing(root, "web"), len(rows) - len(written)
    assert {item.suffixes[0]: item.source for item in listing.items} == written
    assert [listing.named("status"), listing.named(""), *listing.rejects] == [num, num]


def conversations(rng: random.Random, root: Path) -> None:
    """LLaVA's rows with pictures, pairs, clips, sounds or text alone, some with ids."""
    kinds = ("", "image", "images", "videos", "audio", "image audio", "image video", "text")
    rows: list[Row] = []
    for n in range(rng.randrange(1, 7)):
        row: Row = {"id": rng.choice((str(n), 0, str(n + 1), None))} if rng.random() < 0.6 else {}
        for field in rng.choice(kinds).split():
            name = f"{n}." + {"v": "mp4", "a": "wav", "i": "png"}.get(field[0], "")
            row[field] = rng.choice((name, [name], [name, "b.png"], None, ""))
        marks = rng.choice(("<image>\n", "<video>\n", "", "<image><image>", "<audio>"))
        said = [f"{marks}question {n}", f"answer {n}", "<image> more?", "yes"]
        said = zip(("human", "gpt") * 2, said[: rng.choice((2, 2, 3, 4))], strict=False)
        rows.append(row | {"conversations": [{"from": who, "value": text} for who, text in said]})
    source = rng.choice(("llava_pretrain", "llava_instruct"))
    file = source_spec(source).files("train")[0][0]
    (root / source).mkdir()
    (root / source / file).write_text(json.dumps(rows))
    listing = _Listing(root, source)
    num = len(listing.items) + len(listing.rejects) + listing.named("without a picture")
    assert num == len(rows), (rows, listing.rejects)
    assert len({item.id for item in listing.items}) == len(listing.items), rows
    for item in listing.items:
        row = rows[int(item.suffixes[0].removeprefix("answer "))]
        media = [v for field, v in row.items() if field[0] in "iv" and field != "id" and v]
        names = [n for v in media for n in (v if isinstance(v, list) else [v])]
        assert [media.path for media in item.media] == [f"{source}/{name}" for name in names], row
        texts = [item.prefix, *item.suffixes, *sum(item.turns, ())]
        said = [turn["value"] for turn in row["conversations"]]
        cut = [t.replace("<image>", "").replace("<video>", "").strip() for t in said[:1]] + said[1:]
        assert texts == (cut if names else said), row
        assert all(listing.named(f"field {f},") for f in {"audio", "text"} & row.keys() if row[f])


def choices(rng: random.Random, root: Path) -> None:
    """MMBench's rows with gaps among their choices, and with cells beyond the columns."""
    rows: list[list[str]] = []
    for n in range(rng.randrange(1, 6)):
        cells = [rng.choice(("one", "two", "None", '"', "", "nan")) for _ in "ABCD"]
        rows.append([str(n), "q?", *cells, rng.choice("ABCD"), "/9j/" + "A" * 40])
        rows[-1] += rng.choice(([], [], [""], ["more"]))
    text = io.StringIO()
    names = ["index", "question", *"ABCD", "answer", "image"]
    csv.writer(text, "excel-tab").writerows([names, *rows])
    (root / "mmbench").mkdir()
    (root / "mmbench/mmbench_dev_20230712.tsv").write_text(text.getvalue(), newline="")
    listing = _Listing(root, "mmbench", "dev")
    expected = {}
    for row in rows:
        given = [cell for cell in row[2:6] if cell not in ("", "nan")]
        is_whole = given == row[2 : 2 + len(given)] and "ABCD".index(row[6]) < len(given) > 1
        if is_whole and not any(row[8:]):
            expected[row[0]] = given, row[6]
    written = {i.id.rpartition("#")[2]: (i.meta["options"], i.answers[0]) for i in listing.items}
    assert written == expected, (rows, listing.rejects)
    assert len(written) + len(listing.rejects) == len(rows)


def joined_clips(rng: random.Random, root: Path) -> None:
    """Two clips in one file, which are refused or all there."""
    from pipelines.video.probe import probe_video
    from tests.pipelines.video.test_stamps import BLUE, write

    path = root / f"x.{rng.choice(('ts', 'm2v.ts', 'mpg', 'mkv', 'webm', 'ogv'))}"
    drawn = [(rng.randrange(2, 16), rng.choice((0.0, 0.0, 3.0, 300.0))) for _ in range(2)]
    parts = [write(path, BLUE, num, start=at, bf=rng.randrange(3)) for num, at in drawn]
    path.write_bytes(b"".join(parts))
    assert len(set(probe_video(str(path)).times)) == sum(num for num, _ in drawn), (path, drawn)


DRAWN = (folders, tabs, downloads, conversations, choices, joined_clips)
