"""Checks that a bucket is in this machine's region: other reads are slow and cost money."""

import functools
import os
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ALLOW, _REGION, _HOST = "PARCEL_ALLOW_CROSS_REGION", "PARCEL_REGION", "GCE_METADATA_HOST"
"""Environment variables; the last is google-auth's own."""

_MULTI = {"us": "us-", "eu": "europe-", "asia": "asia-"}
"""Multi-region -> prefix of its regions' names. Source: Cloud Storage, "Bucket locations"."""

_DUAL = {
    "nam4": ("us-central1", "us-east1"),
    "eur4": ("europe-north1", "europe-west4"),
    "asia1": ("asia-northeast1", "asia-northeast2"),
}
"""Dual-region -> its regions; a dual-region that is not here is allowed. Source: as above."""

_PRODUCT = Path("/sys/class/dmi/id/product_name")
"""File that begins with "Google" on Compute Engine, also in containers. Elsewhere the metadata
server is not asked, since that would take seconds."""

_TIMEOUT = 3.0
"""Longest wait for the metadata server, as in google-auth [s]."""


def check_region(uri: str, location: Mapping[str, Any]) -> None:
    """Refuses a bucket that is certainly in another region than this machine.

    Args:
      uri: URI of the store, for people.
      location: the bucket's `location`, and `customPlacementConfig` where it has one.

    Raises:
      ValueError: if it is; the message names both places, and the remedy.
    """
    region = region_of_machine()
    if region is None or os.environ.get(_ALLOW) == "1" or _may_contain(location, region):
        return
    raise ValueError(
        f"store {uri} is in {location['location'].lower()} and this machine in {region}: all that "
        f"is read would cross regions. Run where the bucket is, name a bucket here, or set "
        f"{_ALLOW}=1."
    )


def region_of_machine() -> str | None:
    """Returns the region this machine is in; None if that is not known.

    It comes from PARCEL_REGION, or else from the metadata server of Compute Engine.

    Raises:
      ValueError: if PARCEL_REGION names no region.
    """
    stated = os.environ.get(_REGION)
    if stated is None:
        return _metadata_region(os.environ.get(_HOST))
    if not re.fullmatch(r"[a-z]+-[a-z]+\d+", stated):
        raise ValueError(f"{_REGION} must be a region such as us-central1, got {stated!r}.")
    return stated


@functools.cache
def _metadata_region(host: str | None) -> str | None:
    """Returns the region according to the metadata server at a host (None is the usual host)."""
    if host is None and not _is_compute_engine():
        return None
    request = urllib.request.Request(
        f"http://{host or 'metadata.google.internal'}/computeMetadata/v1/instance/zone",
        headers={"Metadata-Flavor": "Google"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT) as response:
            zone = response.read().decode()
    except OSError:
        return None
    # "projects/123/zones/us-central1-b" -> us-central1
    match = re.fullmatch(r"projects/\d+/zones/([a-z]+-[a-z]+\d+)-[a-z]", zone.strip())
    return match[1] if match else None


def _is_compute_engine() -> bool:
    try:
        return _PRODUCT.read_text().startswith("Google")
    except OSError:
        return False


def _may_contain(location: Mapping[str, Any], region: str) -> bool:
    """Whether a bucket's location contains a region; an unknown location is assumed to."""
    name = location["location"].lower()
    locations = location.get("customPlacementConfig", {}).get("dataLocations", ())
    # A dual-region that the user composed lists its regions; the predefined ones are in a table,
    # and a multi-region is told by the beginning of the region's name.
    if locations:
        return region in {location_name.lower() for location_name in locations}
    if name in _MULTI:
        return region.startswith(_MULTI[name])
    if name in _DUAL:
        return region in _DUAL[name]
    return "-" not in name or name == region
