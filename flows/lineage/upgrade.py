"""Gives the artifacts of an older store the keys that this version looks for.

    format 2   predictions-7c66…-dd43…   of checkpoint, data, decoding and metric: answers and score
    format 3   predictions-91ab…-0e77…   of checkpoint, data, decoding and connector: answers

A key is made of what its manifest says, so it can be computed anew. No file of an artifact is read
or written: it gets a second name. The old names are in no record any more, so gc deletes them.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from flows.steps.registry import manifest_recipe, step_code, user_modules
from flows.steps.user_code import install_user_code
from infra.errors import ConfigError
from infra.source_code import Tree, checkout, code_sha256
from infra.store.digest import value_sha256
from infra.store.history import ARTIFACTS, HISTORY
from infra.store.manifest import IDENTITY_LENGTH, KEY, Manifest
from infra.store.pins import living_runs
from infra.store.records import RUNS
from infra.store.store import FORMAT, Artifact, Store


def upgrade_store(uri: str) -> Iterator[str]:
    """Gives every artifact of a store of format 2 its key of today; yields a line for each sort.

    It may be killed at any moment and called again: the store's number changes last.

    Raises:
      ConfigError: if the store cannot be read, or a run is using it.
    """
    try:
        store = Store(uri, formats=(2, FORMAT))
    except (ValueError, OSError) as error:
        raise ConfigError(f"--store: {error}") from None
    if store.format == FORMAT:
        yield f"{store.uri} has format {FORMAT} already: nothing to do"
        return
    if runs := living_runs(store.volatile):
        raise ConfigError(
            f"--store must be used by no run, got {store.uri}, which {', '.join(sorted(runs))} "
            f"uses; wait for its end, or cancel it."
        )
    #   for each artifact, those that it reads first:
    #     manifest ─▶ config of today's type, code of the kept sources ─▶ key
    #     its files under the new key, then the new manifest
    #   then the records of runs name the new keys, and last the store has its number
    new_keys: dict[str, str] = {}
    kept: list[str] = []
    for artifact in _inputs_first(store):
        try:
            manifest = _manifest_of_today(store, artifact.manifest, new_keys)
        except ConfigError as error:
            kept.append(f"{artifact.key}: {error}")
            continue
        if manifest.key != artifact.key:
            _link_files(store, artifact.manifest, manifest)
            store.publish(manifest)
            new_keys[artifact.key] = manifest.key
    for name in store.files.listing(RUNS):
        text = store.files.read(f"{RUNS}/{name}").decode()
        renamed = KEY.sub(lambda match: new_keys.get(match[0], match[0]), text)
        if renamed != text:
            store.files.put(f"{RUNS}/{name}", renamed.encode())
    store.set_format()
    yield f"{len(new_keys)} artifacts have a new key; `parcel gc` deletes the old names"
    yield from (f"kept as it is: {line}" for line in kept)


def _inputs_first(store: Store) -> Iterator[Artifact]:
    artifacts = {artifact.key: artifact for artifact in store.artifacts()}
    pending, done = [*artifacts], set[str]()
    while pending:
        key = pending.pop()
        inputs = [entry.key for entry in artifacts[key].manifest.inputs.values()]
        missing = [k for k in inputs if k in artifacts and k not in done]
        if missing:
            pending += [key, *missing]
        elif key not in done:
            done.add(key)
            yield artifacts[key]


def _manifest_of_today(store: Store, old: Manifest, new_keys: Mapping[str, str]) -> Manifest:
    """Returns the manifest as this version would have written it.

    Raises:
      ConfigError: if its key is not that of what it says, or this version cannot read its config.
    """
    inputs = {
        role: dataclasses.replace(entry, key=new_keys.get(entry.key, entry.key))
        for role, entry in old.inputs.items()
    }
    if not _has_identity_of_format_2(old):
        # Re-keyed before a kill: it has the key that this version gives it.
        if manifest_recipe(old).identity == old.key.rpartition("-")[0]:
            return old
        raise ConfigError("its config does not give its key: it held a credential, perhaps")
    if old.source and user_modules(old.kind, old.config):
        install_user_code(store.open_source(old.source))
    now = dataclasses.replace(old, inputs=inputs, config=_config_of_today(store, old))
    if old.kind == "results":  # Made again in a second, from scores that it could not know.
        key = f"results-{value_sha256([old.key])[:IDENTITY_LENGTH]}-{old.code[:8]}"
        return dataclasses.replace(now, key=key)
    recipe = manifest_recipe(now)
    code = _code_of_today(store, old, recipe.config) or old.code
    recipe = dataclasses.replace(recipe, code=code)
    return dataclasses.replace(now, key=recipe.key, config=recipe.config, code=code)


def _has_identity_of_format_2(manifest: Manifest) -> bool:
    """Whether a key is the digest that format 2 makes of its manifest."""
    # Every field that the manifest shows was in the key; the manifest left the same ones out.
    parts = {
        "kind": manifest.kind,
        "inputs": {role: entry.content for role, entry in manifest.inputs.items()},
        "config": manifest.config,
        "seed": manifest.seed,
        "libraries": manifest.libraries,
    }
    identity = f"{manifest.kind.replace('_', '-')}-{value_sha256(parts)[:IDENTITY_LENGTH]}"
    return manifest.key.rpartition("-")[0] == identity


def _config_of_today(store: Store, old: Manifest) -> Any:
    """Returns a config of format 2 with today's fields, in plain values."""
    if old.kind != "predictions":
        return old.config
    # The metric belongs to the scores now, and the connector of the checkpoint to the predictions.
    decode = {name: value for name, value in old.config["decode"].items() if name != "metric"}
    checkpoint = store.get_cached(old.inputs["checkpoint"].key).manifest.config
    connector = old.config.get("connector") or checkpoint["model"]["connector"]["kind"]
    return {"budget": old.config["budget"], "decode": decode, "connector": connector}


def _code_of_today(store: Store, old: Manifest, config: Any) -> str:
    """Returns the digest of the code that made an artifact, by this version's rule; "" if unknown.

    Between format 2 and 3 the sources changed in ways that no byte shows. Code that differs from
    this version's in these changes only counts as this version's.
    """
    if not old.source:
        return ""
    with contextlib.suppress(OSError, ValueError, KeyError):
        then = step_code(old.kind, config, Tree(store.open_source(old.source)))
        now = step_code(old.kind, config, checkout())
        return code_sha256(now if _are_equivalent(then, now) else then)
    return ""


def _are_equivalent(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    return then == now


def _link_files(store: Store, old: Manifest, new: Manifest) -> None:
    """Gives an artifact's files, and the history of its key, their names under another key."""
    source, target = f"{ARTIFACTS}/{old.key}", f"{ARTIFACTS}/{new.key}"
    for path, file in old.files.items():
        name = f"{target}/{new.folder}/{path}"
        with contextlib.suppress(FileNotFoundError):  # Let go by a run that did not keep it.
            if path not in store.files.sizes(f"{target}/{new.folder}", [path]):
                store.files.link(f"{source}/{old.folder}/{path}", name, file)
    for note in store.files.listing(f"{source}/{HISTORY}"):
        text = store.files.read(f"{source}/{HISTORY}/{note}")
        store.files.put(f"{target}/{HISTORY}/{note}", text)
