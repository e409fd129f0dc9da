"""The Terraform files: formatted, and every name and attribute exists."""

import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from infra.store.scratch import SCRATCH
from tests.infra.deploy.files import (
    TERRAFORM,
    blocks,
    needs_terraform,
    resources,
    site,
    terraform,
)


def test_only_progress_is_deleted_by_its_age():
    """All else is named by manifests."""
    (bucket,) = resources("google_storage_bucket").values()
    rules = {rule["action"][0]["type"]: rule["condition"][0] for rule in bucket["lifecycle_rule"]}
    assert rules["Delete"]["matches_prefix"] == [f"${{var.store_prefix}}/{SCRATCH}/"]


@needs_terraform
def test_files_are_formatted(tmp_path: Path):
    assert terraform(tmp_path, "fmt", "-check", "-diff", str(TERRAFORM)) == ""


@needs_terraform
@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"zone": "us-central1-a"}, "zone must lie in the region"),
        ({"tpu": '{ topology = "4x4" }'}, "must be the chips of the topology"),
        ({"gpu": '{ max_nodes = "many" }'}, "a number is required"),
    ],
)
def test_wrong_values_are_refused(variables: Mapping[str, str], said: str, tmp_path: Path):
    with pytest.raises(subprocess.CalledProcessError) as caught:
        site(tmp_path, variables)
    assert said in caught.value.stderr.replace("\n", " ")


SCHEMA = "cdktf-cdktf-provider-google==16.12.1"
"""A package that holds the schema of the provider's version 6.50, as bindings to Python."""


@pytest.mark.deep
def test_every_attribute_is_one_of_the_provider(tmp_path: Path):
    types = provider_schema(tmp_path)
    (versions,) = (body for _, body in blocks()["terraform"])
    assert versions["required_providers"][0]["google"]["version"] == "~> 6.50"
    assert {s for s in types["documented"]} == {"6.50.0"}
    for labels, body in blocks()["resource"]:
        name = kind_of(labels[0])
        check_block(types, f"{name[0].lower()}{name[1:]}.{name}Config", body, ".".join(labels))
    for sort, _, attribute in re.findall(r"\b(google_\w+)\.(\w+)\.(\w+)", str(blocks())):
        name = kind_of(sort)
        assert attribute in types[f"{name[0].lower()}{name[1:]}.{name}"], (sort, attribute)


def provider_schema(folder: Path) -> dict[str, Any]:
    """Returns type -> its properties of the Google provider, of a package of PyPI."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, SCHEMA],
        capture_output=True,
        text=True,
        timeout=600,
    )
    if done.returncode:
        pytest.skip(f"no registry has {SCHEMA}: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (inner,) = (name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        archive.extract(inner, folder)
    with tarfile.open(folder / inner) as archive:
        file = archive.extractfile("package/.jsii")
        assert file is not None
        described = json.load(file)["types"]
    found: dict[str, Any] = {"documented": set()}
    for name, described_type in described.items():
        short = name.removeprefix("@cdktf/provider-google.")
        found[short] = {}
        for entry in described_type.get("properties", []):
            remarks = entry.get("docs", {}).get("remarks", "")
            told = re.search(r"/google/([\d.]+)/docs/resources/\w+#(\w+)", remarks)
            if told:
                found["documented"].add(told.group(1))
            found[short][told.group(2) if told else snake(entry["name"])] = entry
    return found


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def kind_of(resource: str) -> str:
    """Returns a resource's type as the bindings spell it."""
    return "".join(word.title() for word in resource.removeprefix("google_").split("_"))


META = {"for_each", "count", "depends_on", "lifecycle"}
"""Arguments that Terraform itself takes, of any resource."""


def check_block(types: dict[str, Any], name: str, body: dict[str, Any], where: str) -> None:
    """Checks that a block's arguments exist, that blocks are blocks, and that none is missing."""
    known = types[name]
    given = {key: value for key, value in body.items() if not key.startswith("__")}
    for dynamic in given.pop("dynamic", []):
        ((label, made),) = dynamic.items()
        given[label] = made["content"]
    for key, value in given.items():
        if key in META:
            continue
        assert key in known, f"{where}.{key} is no argument; there are {', '.join(sorted(known))}"
        inner = re.findall(r'provider-google\.([\w.]+)"', json.dumps(known[key]["type"]))
        is_block = isinstance(value, list) and bool(value) and isinstance(value[0], dict)
        assert is_block == bool(inner), f"{where}.{key} is {'no' if is_block else 'a'} block"
        for each in value if is_block else []:
            check_block(types, inner[0], each, f"{where}.{key}")
    required = {key for key, entry in known.items() if not entry.get("optional")}
    assert required <= given.keys(), f"{where} lacks {', '.join(required - given.keys())}"
