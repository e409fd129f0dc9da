"""Which names mean a time zone, and the same one on every machine."""

import zoneinfo

_NOT_ZONES = ("localtime", "Factory", "posixrules")
"""Entries of a machine's database that stand for its own zone, or for one that was never set."""


def is_time_zone(name: str) -> bool:
    """Returns whether a name is that of a time zone, such as Europe/Berlin."""
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return name not in _NOT_ZONES
