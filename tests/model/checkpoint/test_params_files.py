"""Parameters as files: whole, in part, straight to and from a bucket, and never other bytes."""

import types
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.store.manifest import Recipe
from infra.store.store import Attempt, Store
from infra.store.stored_folder import open_stored_folder
from model.checkpoint import params_files
from model.checkpoint.array_files import read_safetensors
from model.checkpoint.digest import flatten_params, params_digest
from model.checkpoint.folder import load_config, load_params, params_of, save_checkpoint
from model.checkpoint.params_files import ParamsReader, put_into, read_index, write_params
from tests.gcs.faults import Rule
from tests.gcs.server import GCS
from tests.model.checkpoint.test_folder import MODEL

RNG = np.random.default_rng(0)
PARAMS = {
    "text": {
        "blocks": RNG.normal(size=(3, 40, 50)).astype(np.float32),
        "scale": np.float32(3.5),
        "half": RNG.normal(size=(7, 5)).astype(ml_dtypes.bfloat16),
        "none": np.zeros((0, 4), np.float32),
    },
    "vision": {"embedding": RNG.normal(size=(211, 30)).astype(np.float32)},
}
ARRAYS = {path: np.asarray(leaf) for path, leaf in flatten_params(PARAMS)}


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(params_files, "FILE_BYTES", 20_000)
    monkeypatch.setattr(params_files, "PIECE", 1000)
    monkeypatch.setattr(params_files, "_READ", 4000)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(params_files, "FILE_BYTES", 20_000)
        patch.setattr(params_files, "PIECE", 1000)
        folder = tmp_path_factory.mktemp("params")
        (folder / "params.json").write_text(write_params(PARAMS, put_into(folder)))
        return folder


def reader(folder: Path) -> ParamsReader:
    place = open_stored_folder(folder)
    return ParamsReader(place, read_index(place))


def test_arrays_come_back_from_files_that_others_can_read(written: Path):
    files = sorted(written.glob("params-*"))
    assert [file.name for file in files] == [
        f"params-{i:05d}-of-{len(files):05d}.safetensors" for i in range(len(files))
    ]
    assert len(files) > 1
    theirs = {name: array for file in files for name, array in read_safetensors(file).items()}
    ours = reader(written).read_all(dict.fromkeys(ARRAYS, ()))
    for path, array in ARRAYS.items():
        for found in (theirs[path], ours[path]):
            assert (found.dtype, found.shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(found, array)


@given(data=st.data())
@settings(max_examples=60)
def test_a_part_is_what_the_whole_has_there(written: Path, data: st.DataObject):
    path = data.draw(st.sampled_from(sorted(ARRAYS)))
    index = []
    for n in ARRAYS[path].shape[: data.draw(st.integers(0, ARRAYS[path].ndim))]:
        start = data.draw(st.integers(0, n))
        index.append(slice(start, data.draw(st.integers(start, n))))
    np.testing.assert_array_equal(
        reader(written).read(path, tuple(index)), ARRAYS[path][tuple(index)]
    )


def test_devices_read_their_own_shards(written: Path):
    mesh = jax.make_mesh((1,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P(None, "fsdp"))
    arrays = reader(written)
    made = jax.make_array_from_callback(
        (3, 40, 50), sharding, lambda index: arrays.read("text/blocks", index)
    )
    np.testing.assert_array_equal(made, ARRAYS["text/blocks"])


def test_a_flipped_bit_is_found(written: Path, tmp_path: Path):
    for file in written.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    file = sorted(tmp_path.glob("params-*"))[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(ValueError, match=r"params-00000-of-\d+.safetensors is damaged between"):
        reader(tmp_path).read_all(dict.fromkeys(ARRAYS, ()))


def test_a_type_that_the_format_lacks_is_named(tmp_path: Path):
    with pytest.raises(ValueError, match=r"x .*float64.*got complex64"):
        write_params({"x": np.zeros(3, np.complex64)}, put_into(tmp_path))


@pytest.fixture
def server(server: GCS, monkeypatch: pytest.MonkeyPatch) -> GCS:
    monkeypatch.setattr(
        "infra.store.objects.object_client.time", types.SimpleNamespace(sleep=print)
    )
    return server


def stored(uri: str) -> tuple[Store, str, Attempt]:
    """A checkpoint committed to a store, its parameters sent straight there."""
    store = Store(uri)
    attempt = Attempt(store, Recipe(kind="checkpoint", name="c"))
    attempt.content = save_checkpoint(
        attempt.path, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None, put=attempt.put
    )
    assert not list((store.state / "work").rglob("params-*"))
    return store, attempt.commit({}).key, attempt


@pytest.mark.slow
def test_a_checkpoint_goes_straight_to_the_bucket_and_comes_from_there(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "maker"))
    server.fail(Rule(action="lose", verb="upload", name="*params-*", times=2))
    store, key, _ = stored(f"{server.uri}/studies")
    disk = Store(tmp_path / "disk")
    attempt = Attempt(disk, Recipe(kind="checkpoint", name="c"))
    save_checkpoint(
        attempt.path, model=MODEL, params=PARAMS, tokenizer=None, mask_codec=None, put=attempt.put
    )
    here = attempt.commit({})
    assert store.get(key).manifest.files == here.manifest.files  # Byte for byte.
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path / "reader"))
    server.fail(Rule(action="corrupt", verb="media", name="*params-*", times=3))
    place = Store(f"{server.uri}/studies").get(key).uri
    assert place.startswith(f"{server.scheme}://")
    assert load_config(place) == MODEL
    assert params_digest(load_params(place)) == store.get(key).manifest.content
    params = params_of(place)
    before = server.requests()["media"]["bytes_out"]
    part = params.read("vision/embedding", (slice(3, 5),))
    np.testing.assert_array_equal(part, ARRAYS["vision/embedding"][3:5])
    assert server.requests()["media"]["bytes_out"] - before <= 2000
    assert not list((tmp_path / "reader").rglob("params-*"))


def test_what_was_replaced_or_lost_is_not_committed(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store(f"{server.uri}/studies")
    for spoil in ("replace", "lose"):
        attempt = Attempt(store, Recipe(kind="checkpoint", name="c"))
        attempt.put("x", params_files.ParamsFile({"x": np.arange(9.0)}))
        (name,) = (
            n
            for n in store.files.folders(f"artifacts/{attempt.step.key}/attempts")
            if n == attempt.id
        )
        path = f"artifacts/{attempt.step.key}/attempts/{name}/x"
        data = store.files.read(path)
        store.files.compare_and_delete(path, data)
        if spoil == "replace":
            # The same bytes, of another writer; S3 tells no version of the same bytes from another.
            store.files.put(path, data if server.scheme == "gs" else data[::-1])
        with pytest.raises(OSError, match="does not hold what was sent"):
            attempt.commit({})
    assert store.keys() == []


def test_a_large_file_is_sent_in_parts(
    server: GCS, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PARCEL_STATE", str(tmp_path))
    store = Store(f"{server.uri}/studies")
    file = params_files.ParamsFile({"x": RNG.normal(size=2_300_000)})  # More than a part of 16 MiB.
    server.fail(Rule(action="tear", verb="chunk"), Rule(action="short", verb="chunk"))
    receipt = store.files.upload_bytes("big", file)
    assert server.faults.fired() == [1, 1]
    assert store.files.read("big") == file.read(0, file.size)
    assert receipt.file.sha256 == store.files.sha256("big")
