"""A study whose evaluations are cut into pieces, through the real command."""

import shutil
from pathlib import Path

import pytest

from infra.store.store import Store
from tests.e2e.conftest import CONFIG, Finished, parcel

pytestmark = [pytest.mark.e2e, pytest.mark.deep, pytest.mark.usefixtures("one_server")]


def test_predictions_made_in_pieces_are_those_that_were_made_whole(
    finished: Finished, tmp_path: Path
):
    whole = {a.key: a.manifest for a in Store(finished.store).artifacts("predictions")}
    root = tmp_path / "store"
    shutil.copytree(finished.store, root)
    again = {key for key, made in whole.items() if "parcel" in made.name}
    assert len(again) == 8  # Two seeds, two rows, two budgets.
    for key in again:
        (root / "manifests/predictions" / f"{key}.json").unlink()
    done = parcel(root, "run", CONFIG, "compute.evaluation_pieces=3", "compute.num_cpus=2")
    assert done.returncode == 0, done.stdout + done.stderr
    store = Store(root)
    for key in whole.keys() - again:
        assert store.get(key).manifest.folder == whole[key].folder, done.stdout
    for key in again:
        made = store.get(key).manifest
        assert made.files == whole[key].files
        assert made.folder != whole[key].folder
    assert len([*(root / "jobs").glob("pieces-*/?-of-3")]) == 2 * 2 * 3
