"""Digests of plain values and of settings that many steps share."""

import dataclasses
import hashlib
import weakref

from infra.store.digest import identity_json, members_sha256, settings_json


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float
    name: str = "a"


@dataclasses.dataclass
class Changing:
    rate: float


def test_a_digest_by_members_is_that_of_the_whole():
    members = {"seed": 3, "config": Settings(0.5, 'é"'), "none": None, "inputs": {"b": 1, "a": [2]}}
    whole = hashlib.sha256(identity_json(members).encode()).hexdigest()
    assert members_sha256(members) == whole
    assert members_sha256(members) == whole  # Now that a text is known.


def test_equal_settings_with_other_texts_are_told_apart():
    whole, real = Settings(1), Settings(1.0)
    assert whole == real
    assert settings_json(whole) != settings_json(real)
    assert settings_json(whole) == '{"name":"a","rate":1}'
    assert settings_json(real) == '{"name":"a","rate":1.0}'


def test_what_may_change_is_not_remembered():
    settings = Changing(1.0)
    before = settings_json(settings)
    settings.rate = 2.0
    assert settings_json(settings) != before


def test_few_objects_are_remembered():
    first = Settings(0.0)
    remembered = weakref.ref(first)
    assert settings_json(first) == settings_json(first)
    del first
    assert remembered() is not None
    texts = [settings_json(Settings(float(rate))) for rate in range(1, 5000)]
    assert len(set(texts)) == 4999
    assert remembered() is None
