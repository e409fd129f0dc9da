"""A folder of odd files is prepared to its end: each is a record, a reject or an omission."""

import gzip
import io
import json
import os
import tarfile
from pathlib import Path

from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.run import prepare_dataset
from pipelines.records.dataset import Dataset
from tests.pipelines.sources.reading.test_odd_inputs import picture, write_tar

CONFIG = PrepareConfig(image_px=16, num_shards=2, num_workers=1, max_reject_rate=1.0)


def test_odd_files_of_the_web_end_no_preparation(tmp_path):
    root = tmp_path / "root"
    good = [("0.png", picture(1)), ("0.txt", b"red"), ("._0.txt", b"of a Mac")]
    between = [("9.png", picture(9)), ("9.txt", b"blue")]
    again = [("0.png", picture(2)), ("0.txt", b"again")]
    write_tar(root / "web/a.tar", [*good, *between, *again])
    with tarfile.open(
        root / "web/b.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1"
    ) as archive:
        for name in ("ü.png", "ü.txt", "1.ü", "1.png", "1.txt"):
            info = tarfile.TarInfo(name)
            info.size = len(picture(3))
            archive.addfile(info, io.BytesIO(picture(3)))
    (root / "web/c.tar").write_bytes(b"<html>not found</html>" * 99)
    os.symlink("nowhere", root / "web/d.tar")
    odd_name = os.fsencode(root / "web") + b"/\xfc.jsonl"
    Path(os.fsdecode(odd_name)).write_bytes(b"{}")
    rows = [{"image": {"bytes": None}, "text": "x"}, {"image": "a.png", "text": "ü"}]
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (root / "web/e.jsonl").write_bytes(lines.encode("utf-16"))
    (root / "web/a.png").write_bytes(picture(4))
    prepare_dataset(
        CONFIG, source="web", split="train", data_root=str(root), out=str(tmp_path / "out")
    )
    dataset = Dataset(tmp_path / "out")
    assert sorted(record.suffixes[0] for record in dataset.records()) == ["blue", "red", "ü"]
    reasons = {reject.id: reject.reason for reject in dataset.rejects()}
    assert reasons["web/a/0#caption.en"] == "duplicate id"
    assert reasons["web/e.jsonl/000000000"] == "no image among the fields image, text"
    assert reasons["web/c"].startswith("no archive: it begins with b'<html>not found")
    assert any("not UTF-8" in reason for reason in reasons.values())
    assert dataset.info.num_inputs == dataset.info.num_records + len(reasons)
    omitted = {omission.source: omission.reason for omission in dataset.omissions()}
    assert omitted["web/d.tar"] == "link to a missing file"
    assert omitted[r"web/\udcfc.jsonl"] == "name is not UTF-8; rename it"


def test_a_damaged_list_of_ones_own_is_left_to_the_reject_rate(tmp_path):
    rows = [
        {"image": "a.png", "question": f"{n * 7919 % 1000}?", "answers": "a"} for n in range(3000)
    ]
    whole = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "root/jsonl").mkdir(parents=True)
    (tmp_path / "root/jsonl/a.png").write_bytes(picture(4))
    (tmp_path / "root/jsonl/train.jsonl.gz").write_bytes(whole[: len(whole) // 20])
    out = str(tmp_path / "out")
    prepare_dataset(
        CONFIG, source="jsonl", split="train", data_root=str(tmp_path / "root"), out=out
    )
    (reject,) = Dataset(out).rejects()
    assert (reject.id, reject.source) == ("jsonl/train", "jsonl/train.jsonl.gz")
    assert reject.reason.startswith("train.jsonl.gz is damaged after ")
    assert 0 < Dataset(out).info.num_records < 1000
