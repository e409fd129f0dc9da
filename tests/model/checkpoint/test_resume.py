"""Resumable checkpoints: the newest whole one is gone on from, whatever became of the others."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.checkpoint.resume import ResumePoints, process_parts
from tests.gcs.faults import Rule


def state(step: int) -> dict[str, jnp.ndarray]:
    return {"weights": jnp.arange(7.0) + step, "count": jnp.int32(step)}


def save(place: Path | str, *steps: int) -> ResumePoints:
    """Points with the states after some updates, to be closed."""
    points = ResumePoints(place)
    points.restore(state(0))
    for step in steps:
        points.save(step, process_parts(state(step)), {})
        points.wait()
        assert points.has_new_point()
        assert not points.has_new_point()
    points.close()
    return points


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the states after 3 and 5 updates."""
    save(tmp_path / "points", 3, 5)
    return tmp_path / "points"


def restored(folder: Path) -> tuple[tuple[int, float] | None, tuple[str, ...]]:
    points = ResumePoints(folder)
    found = points.restore(state(0))
    points.close()
    return found and (found[0], float(found[1]["weights"][0])), points.damaged


def point(folder: Path, step: int) -> Path:
    (found,) = folder.glob(f"{step}-*")
    return found


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[0]) for path in folder.glob("*-*"))


def data(folder: Path) -> Path:
    (found,) = point(folder, 5).glob("*.safetensors")
    return found


def half_written(folder: Path) -> None:
    copy = shutil.copytree(point(folder, 5), folder / "7-0")
    (copy / "0.json").unlink()  # All of it, but nobody said that it was.


def truncated(folder: Path) -> None:
    data(folder).write_bytes(data(folder).read_bytes()[:-1])


def tampered(folder: Path) -> None:
    changed = bytearray(data(folder).read_bytes())
    changed[-3] ^= 1
    data(folder).write_bytes(changed)


def missing(folder: Path) -> None:
    data(folder).unlink()


def index_cut(folder: Path) -> None:
    path = point(folder, 5) / "0.json"
    path.write_text(path.read_text()[:-9])


def one_of_two(folder: Path) -> None:
    path = point(folder, 5) / "0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"of": 2}))


def other_index(folder: Path) -> None:
    (point(folder, 5) / "0.json").write_text('{"of": 1}')


def without_a_part(folder: Path) -> None:
    path = point(folder, 5) / "0.json"
    index = json.loads(path.read_text())
    index["parts"] = {key: part for key, part in index["parts"].items() if part[0] != "weights"}
    path.write_text(json.dumps(index))


def test_the_newest_is_gone_on_from_and_old_ones_are_let_go(folder: Path):
    assert restored(folder) == ((5, 5.0), ())
    save(folder, 6)
    assert steps(folder) == [5, 6]


@pytest.mark.parametrize(
    ("spoil", "step", "told"),
    [
        (half_written, 5, "of step 7 is not used: it was not finished"),
        (one_of_two, 3, "of step 5 is not used: it was not finished"),
        (truncated, 3, "of step 5 is not used: .* is not what was written"),
        (tampered, 3, "of step 5 is not used: .* is damaged between bytes"),
        (missing, 3, "of step 5 is not used: .* is not what was written"),
        (index_cut, 3, "of step 5 is not used: 0.json is no JSON"),
        (other_index, 3, "of step 5 is not used: its index has no 'sizes'"),
        (without_a_part, 3, "of step 5 is not used: parts of weights are missing"),
    ],
)
def test_a_damaged_one_is_skipped_and_named(
    folder: Path, spoil: Callable[[Path], None], step: int, told: str
):
    spoil(folder)
    found, damaged = restored(folder)
    assert found == (step, float(step))
    assert len(damaged) == 1
    assert re.search(told, damaged[0])
    # Its place is free: the stage gets to that step again.
    save(folder, 7)
    assert restored(folder) == ((7, 7.0), ())


def test_with_none_whole_the_stage_begins_anew(folder: Path):
    for path in folder.glob("*/0.json"):
        path.unlink()
    found, damaged = restored(folder)
    assert found is None
    assert [line.partition(" is ")[0] for line in damaged] == [
        "resumable checkpoint of step 5",
        "resumable checkpoint of step 3",
    ]
    assert steps(folder) == []


def test_what_is_restored_is_what_was_saved_with_its_notes(tmp_path: Path):
    (tmp_path / "log").write_text("a\nb\n")
    points = ResumePoints(tmp_path / "points")
    points.save(5, process_parts(state(5)), {"log": tmp_path / "log", "none": tmp_path / "none"})
    (tmp_path / "log").write_text("a\nb\nc\n")
    points.close()
    points = ResumePoints(tmp_path / "points")
    found = points.restore(state(0))
    points.close()
    assert found is not None
    np.testing.assert_array_equal(found[1]["weights"], state(5)["weights"])
    assert int(found[1]["count"]) == 5
    assert found[1]["count"].dtype == np.int32
    assert found[2] == {"log": "a\nb\n"}


def test_the_state_may_be_used_up_while_it_is_written(tmp_path: Path):
    before = {"weights": jnp.arange(300_000.0)}
    use_up = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 1, tree), donate_argnums=0)
    points = ResumePoints(tmp_path)
    points.save(1, process_parts(before), {})
    after = use_up(before)
    points.close()
    found = ResumePoints(tmp_path).restore(after)
    assert found is not None
    np.testing.assert_array_equal(found[1]["weights"], np.arange(300_000.0))


def test_a_point_that_cannot_be_written_is_told_of(tmp_path: Path):
    points = ResumePoints(tmp_path / "points")
    shutil.rmtree(tmp_path / "points")  # Another took the step over, and its folder.
    points.save(1, process_parts(state(1)), {})
    with pytest.raises(FileNotFoundError, match="another process has taken over"):
        points.wait()
    assert not (tmp_path / "points").exists()


def test_what_is_older_than_the_newest_is_let_go_whole_or_not(folder: Path):
    (point(folder, 3) / "0.json").unlink()
    shutil.copytree(point(folder, 3), folder / "2-0")
    save(folder, 6)
    assert steps(folder) == [5, 6]


def test_of_two_who_write_at_once_both_points_are_whole(tmp_path: Path):
    ours, theirs = ResumePoints(tmp_path), ResumePoints(tmp_path)
    for points in (ours, theirs):
        points.save(4, process_parts(state(4)), {})
    for points in (ours, theirs):
        points.close()
    assert steps(tmp_path) == [4, 4]
    assert restored(tmp_path) == ((4, 4.0), ())


@pytest.mark.slow
def test_in_a_bucket_whatever_it_answers(gcs, folder: Path):
    large = {"weights": jnp.arange(2_000_000.0), "count": jnp.int32(3)}
    points = ResumePoints("gs://testing/scratch/key/shared/points")
    gcs.fail(
        Rule(action="answer", verb="start", status=503),
        Rule(action="corrupt_upload", verb="chunk", at=5_000),
        Rule(action="lose", verb="upload", name="*/0.json"),
        Rule(action="corrupt", verb="media", name="*.safetensors", at=70_000),
        Rule(action="reset_reply", verb="media", name="*.safetensors", skip=1, at=100),
    )
    points.save(3, process_parts(large), {})
    points.wait()
    points.close()
    points = ResumePoints("gs://testing/scratch/key/shared/points")
    found = points.restore(large)
    points.close()
    assert found is not None
    np.testing.assert_array_equal(found[1]["weights"], large["weights"])
    assert points.damaged == ()


_FOUR_DEVICES = """
import sys, tempfile
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from model.checkpoint.resume import ResumePoints, process_parts
grid = np.array(jax.devices()).reshape(2, 2)
MESHES = [Mesh(grid, ("a", "b")), Mesh(grid[:1, :1], ("a", "b")), Mesh(grid.T[:1], ("a", "b"))]
SPECS = [P(), P("a"), P(None, "b"), P(("a", "b")), P("a", "b"), P("b", "a")]
whole = {str(n): np.random.default_rng(n).random((8, 4, 3), np.float32) for n in range(6)}
whole["count"] = np.int32(7)

def put(tree, mesh, specs):
    at = {n: NamedSharding(mesh, P() if n == "count" else specs[int(n)]) for n in tree}
    return jax.device_put(tree, at)

for number, one in enumerate(MESHES):
    state = put(whole, one, SPECS)
    parts = process_parts(state)
    for n in whole:  # Each element is written once.
        assert sum(part.data.size for part in parts if part.path == n) == whole[n].size
    if number == 0:
        assert len([part for part in parts if part.path == "3"]) == 4
    with tempfile.TemporaryDirectory() as folder:
        points = ResumePoints(folder)
        points.save(1, parts, {})
        points.close()
        for other in MESHES:
            template = put(whole, other, SPECS[::-1])
            step, found, _ = ResumePoints(folder).restore(template)
            for n in whole:
                np.testing.assert_array_equal(found[n], whole[n])
                assert found[n].sharding == template[n].sharding
                assert found[n].dtype == template[n].dtype
"""


@pytest.mark.slow
def test_parts_of_one_mesh_are_read_as_parts_of_another(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", _FOUR_DEVICES], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
