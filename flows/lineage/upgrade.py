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

from flows.steps.accepted import rename_accepted
from flows.steps.registry import manifest_recipe, step_code, user_modules
from flows.steps.user_code import install_user_code
from infra.errors import ConfigError
from infra.source_code import Tree, checkout, code_sha256, read_module
from infra.store.digest import value_sha256
from infra.store.history import ARTIFACTS, HISTORY
from infra.store.lineage import inputs_first
from infra.store.manifest import CODE_LENGTH, IDENTITY_LENGTH, KEY, UPGRADED, Manifest
from infra.store.pins import living_runs
from infra.store.records import RUNS
from infra.store.store import FORMAT, Artifact, Store

_DIGITS = 16
"""Number of hex digits of a module's digest in the table below."""

_SAME_BYTES = {
    "flows.steps.kinds.chance": ("e767fe4272eb69f9", "1b197615bf8f0ebb"),
    "flows.steps.kinds.checkpoint": ("86ca8e5a405f6d7c", "3a1dc353cf5424c7"),
    "flows.steps.kinds.corpus": ("f3e4f4982992d3b8", "c1abf5c943b8a8fe"),
    "flows.steps.kinds.dataset": ("b5984398bf3a3398", "ef104836442e74f8"),
    "flows.steps.kinds.files": ("38ff71c6899a1f80", "320f8755893869df"),
    "flows.steps.kinds.mask_codec": ("dc71682aee2aa6dd", "56944f54e8bdad36"),
    "flows.steps.kinds.predictions": ("283e80d0fe67f6ef", "46ccb55d2ca56f47"),
    "flows.steps.kinds.raw_files": ("fecb2c33942b64b4", "51bbb710c99770e0"),
    "flows.steps.kinds.screened": ("4b9d722b52a10455", "0933bf72cd5a5edd"),
    "flows.steps.kinds.start": ("ab8507f095051b2a", "4e14df303657d857"),
    "flows.steps.kinds.tokenizer": ("bb99fd6f06d4ebcc", "767d44b4d77d260e"),
    "model.connector.registry": ("cf351793c6a83ebd", "8448229cc7efdd91"),
    "model.decode.config": ("487dcfd893249cf3", "837e9dc4616bbb5c"),
    "model.eval.config": ("c4b8dc853bab4ace", "7b2c6e0eee224c8a"),
    "model.eval.items_file": ("", "a071dabbe5193a68"),
    "model.eval.predictions_file": ("", "7ddacc661e83ea6f"),
    "model.eval.score": ("", "169350313938b9d8"),
    "model.files": ("d40f2567634b9196", "c0c33cbcbc7f52bf"),
    "model.masks.codec": ("d0434fb1b4e2f5fa", "c6809086d62e5928"),
    "pipelines.hygiene.screen": ("b3c922b8a61055c7", "8c8aaf5fa8ad64a1"),
}
"""Module -> its digests in the last version of format 2, and in the first of format 3; "" where
that version has none. These edits moved settings and code: no step makes other answers, parameters
or records by them. A later edit of any of these modules makes what was upgraded stale, as ever."""


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
    #   then the records of runs and what was accepted name the new keys
    #   last, the store has its number
    new_keys: dict[str, str] = {}
    new_codes: dict[str, str] = {}
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
            new_codes[artifact.manifest.code] = manifest.code
    for name in store.files.listing(RUNS):
        text = store.files.read(f"{RUNS}/{name}").decode()
        renamed = KEY.sub(lambda match: new_keys.get(match[0], match[0]), text)
        if renamed != text:
            store.files.put(f"{RUNS}/{name}", renamed.encode())
    rename_accepted(store, new_keys, new_codes)
    store.set_format()
    yield f"{len(new_keys)} artifacts have a new key; `parcel gc` deletes the old names"
    yield from (f"kept as it is: {line}" for line in kept)


def _inputs_first(store: Store) -> list[Artifact]:
    artifacts = {artifact.key: artifact for artifact in store.artifacts()}
    reads = {
        key: [read.key for read in artifact.manifest.inputs.values() if read.key in artifacts]
        for key, artifact in artifacts.items()
    }
    return [artifacts[key] for key in inputs_first(reads)]


def _manifest_of_today(store: Store, old: Manifest, new_keys: Mapping[str, str]) -> Manifest:
    """Returns the manifest as this version would have written it.

    Raises:
      ConfigError: if its key is not that of what it says, or this version cannot read its config.
    """
    if UPGRADED in old.environment:  # Before a kill.
        return old
    inputs = {
        role: dataclasses.replace(entry, key=new_keys.get(entry.key, entry.key))
        for role, entry in old.inputs.items()
    }
    if not _has_identity_of_format_2(old):
        raise ConfigError("its config does not give its key: it held a credential, perhaps")
    if old.source and user_modules(old.kind, old.config):
        install_user_code(store.open_source(old.source))
    # Whoever replays it asks the code of then, for what that code understood.
    then = {"key": old.key, "config": old.config, "code": old.code}
    now = dataclasses.replace(
        old,
        inputs=inputs,
        config=_config_of_today(store, old),
        environment={**old.environment, UPGRADED: then},
    )
    if old.kind == "results":  # Made again in a second, from scores that it could not know.
        key = f"results-{value_sha256([old.key])[:IDENTITY_LENGTH]}-{old.code[:CODE_LENGTH]}"
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
        return code_sha256(now if _make_same_bytes(then, now) else then)
    return ""


def _make_same_bytes(then: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Whether two codes, module -> digest, differ in edits of `_SAME_BYTES` only."""
    for module in then.keys() | now.keys():
        was, is_now = then.get(module, ""), now.get(module, "")
        if was == is_now:
            continue
        # By its text: of a registry, a code has values; predictions no longer reach the metrics.
        text = read_module(checkout().text(module)).digest if module in checkout() else ""
        if was != text and (was[:_DIGITS], text[:_DIGITS]) != _SAME_BYTES.get(module):
            return False
    return True


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
