"""Any sequence of acts leaves what a plain dictionary says."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gcs.objects import Conditions, Content, Refused, Store

NAMES = st.sampled_from(["a", "a/", "a/b", "a/b/c", "a0", "b", "é", "z/z"])


@dataclasses.dataclass(frozen=True)
class Act:
    """A request.

    Attributes:
      verb: "put", "delete", "get", "move" or "list".
      other: second name, of a move; a listing's prefix is `name`.
      guess: what the precondition asks for: None nothing, 0 absence, 1 the live generation, 2
        another one.
    """

    verb: str
    name: str
    other: str
    guess: int | None
    data: bytes


ACTS = st.builds(
    Act,
    verb=st.sampled_from(["put", "put", "delete", "get", "move", "list"]),
    name=NAMES,
    other=NAMES,
    guess=st.sampled_from([None, 0, 1, 2]),
    data=st.binary(max_size=3),
)


@pytest.mark.slow
@settings(max_examples=300)
@given(acts=st.lists(ACTS, max_size=25), limit=st.integers(1, 4))
def test_store_agrees_with_a_dictionary(acts: list[Act], limit: int):
    store = Store()
    store.make_bucket("testing")
    model: dict[str, tuple[bytes, int]] = {}
    newest = 0
    for act in acts:
        live = model.get(act.name, (b"", 0))[1]
        wanted = {None: None, 0: 0, 1: live, 2: live + 1}[act.guess]
        guard = Conditions(generation=wanted)
        holds = wanted in (None, live)
        if act.verb == "list":
            check_listing(store, model, act.name, limit)
        elif act.verb == "put" and holds:
            made = store.put("testing", act.name, Content.of(act.data), conditions=guard)
            assert made.generation > newest
            newest = made.generation
            model[act.name] = act.data, newest
        elif act.verb == "put":
            with pytest.raises(Refused, match="ifGenerationMatch"):
                store.put("testing", act.name, Content.of(act.data), conditions=guard)
        elif act.verb == "move" and live and holds and act.name != act.other:
            moved = store.move("testing", act.name, act.other, guard, Conditions())
            assert moved.generation > newest
            newest = moved.generation
            model[act.other] = model.pop(act.name)[0], newest
        elif act.verb == "delete" and live and holds:
            store.delete("testing", act.name, guard)
            del model[act.name]
        elif act.verb == "get" and live and holds:
            found = store.get("testing", act.name, guard)
            assert (found.data, found.generation) == model[act.name]
        else:
            missing = 412 if act.verb == "get" and wanted else 404
            status = missing if not live else 412 if not holds else 400
            assert refusal(store, act, guard) == status
    for prefix in ("", "a", "a/"):
        check_listing(store, model, prefix, limit)


def refusal(store: Store, act: Act, guard: Conditions) -> int:
    """Returns the status of an act that cannot be done."""
    calls = {
        "move": lambda: store.move("testing", act.name, act.other, guard, Conditions()),
        "delete": lambda: store.delete("testing", act.name, guard),
        "get": lambda: store.get("testing", act.name, guard),
    }
    with pytest.raises(Refused) as refused:
        calls[act.verb]()
    return refused.value.status


def check_listing(store: Store, model: dict[str, tuple[bytes, int]], prefix: str, limit: int):
    """Compares paged listings, flat and by folders, with what the names say."""
    names = sorted(name for name in model if name.startswith(prefix))
    folders = {
        name[: name.index("/", len(prefix)) + 1] for name in names if "/" in name[len(prefix) :]
    }
    plain = [name for name in names if "/" not in name[len(prefix) :]]
    for delimiter, items, prefixes in (("", names, []), ("/", plain, sorted(folders))):
        found, grouped, token = [], [], ""
        while token is not None:
            page = store.listing(
                "testing", prefix=prefix, delimiter=delimiter, token=token, limit=limit
            )
            assert len(page.items) + len(page.prefixes) <= limit
            found += [(item.name, item.data, item.generation) for item in page.items]
            grouped += page.prefixes
            token = page.token
        assert found == [(name, *model[name]) for name in items]
        assert grouped == prefixes
