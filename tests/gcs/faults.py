"""Faults that the server makes on demand: rules that pick requests, and an action for each."""

import dataclasses
import fnmatch
import random
import threading

VERBS = frozenset(
    {
        "upload",  # A whole object in one request.
        "start",  # The beginning of a resumable upload,
        "chunk",  # a part of it,
        "query",  # the question how much has arrived, which ends it if that is all (gcsfs),
        "cancel",  # its end without an object.
        "media",  # An object's bytes.
        "metadata",
        "list",
        "delete",
        "rewrite",
        "copy",
        "batch",  # The envelope; the requests inside of it have verbs of their own.
        "bucket",  # Whatever is asked of a bucket itself.
    }
)
"""The kinds of requests that rules and counts tell apart; what is none of them is "other"."""

ACTIONS = {
    "answer": VERBS,  # `status`, and nothing is done.
    "stall": VERBS,  # Nothing for `seconds`, then all goes on.
    "late": VERBS,  # All is done, nothing for `seconds`, then the reply.
    "stall_reply": VERBS,  # `at` bytes of the reply's body, nothing for `seconds`, then the rest.
    "reset": VERBS,  # The connection is reset before anything is done,
    "reset_request": VERBS,  # after `at` bytes of the request's body were read; nothing is done,
    "reset_reply": VERBS,  # after `at` bytes of the reply's body were sent; all is done.
    "tear": frozenset({"chunk"}),  # `at` bytes of the chunk are kept, then a reset.
    "short": frozenset({"chunk"}),  # `at` bytes of the chunk are kept, as the reply says.
    "corrupt": frozenset({"media"}),  # The byte at `at` is another; hashes are of the right one.
    # The byte at `at` of what is stored is another; hashes that were announced are looked at first.
    "corrupt_upload": frozenset({"upload", "chunk"}),
    # What was there `seconds` ago. The real one never does so, a cache in front of it might.
    "stale": frozenset({"list"}),
    "lose": VERBS,  # All is done, and the connection reset without a reply.
    "lose_answer": VERBS,  # All is done, and `status` replied.
}
"""Actions, each with the verbs that it can be applied to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """A fault, and the requests that it falls on.

    Attributes:
      action: one of `ACTIONS`.
      verb: one of `VERBS`; "*" for all that the action can be done to.
      name: pattern of the object's name, as in a shell (of a copy, the source's); "*" also
        matches requests without one.
      skip: matching requests that are let through first.
      times: matching requests that it falls on; None for no end.
      probability: chance for each of them.
      seed: of the dice.
      status: HTTP status that is answered.
      seconds: of stalling, or how old a listing is [s].
      at: where in a body; None for its middle [bytes].
    """

    action: str
    verb: str = "*"
    name: str = "*"
    skip: int = 0
    times: int | None = 1
    probability: float = 1.0
    seed: int = 0
    status: int = 503
    seconds: float = 1.0
    at: int | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"action must be one of {sorted(ACTIONS)}, got {self.action!r}.")
        allowed = ACTIONS[self.action]
        if self.verb != "*" and self.verb not in allowed:
            raise ValueError(
                f"verb must be one of {sorted(allowed)} for action {self.action!r}, "
                f"got {self.verb!r}."
            )
        if not 0 < self.probability <= 1:
            raise ValueError(f"probability must be in (0, 1], got {self.probability}.")

    def matches(self, verb: str, name: str) -> bool:
        return (
            verb in ACTIONS[self.action]
            and self.verb in ("*", verb)
            and fnmatch.fnmatchcase(name, self.name)
        )

    def place(self, size: int) -> int:
        """Returns `at` in a body of that size."""
        return size // 2 if self.at is None else min(self.at, size)


HARMLESS = Rule(action="stall", seconds=0.0)
"""A rule that changes nothing, for a request that none falls on."""


class _Armed:
    """A rule in force, with what is left of it."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.skip, self.times = rule.skip, rule.times
        self.dice = random.Random(rule.seed)
        self.fired = 0

    def falls(self) -> bool:
        if self.skip:
            self.skip -= 1
            return False
        if self.times == self.fired or self.dice.random() >= self.rule.probability:
            return False
        self.fired += 1
        return True


class Faults:
    """The rules in force."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[_Armed] = []

    def add(self, rule: Rule) -> int:
        """Puts a rule in force; returns its place in `fired`."""
        with self._lock:
            self._armed.append(_Armed(rule))
            return len(self._armed) - 1

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

    def take(self, verb: str, name: str) -> Rule:
        """Returns the first rule that falls on a request, which uses one of its times up.

        `HARMLESS` where none does.
        """
        with self._lock:
            for armed in self._armed:
                if armed.rule.matches(verb, name) and armed.falls():
                    return armed.rule
        return HARMLESS

    def fired(self) -> list[int]:
        """Returns how often each rule has fallen on a request, in the order they were given."""
        with self._lock:
            return [armed.fired for armed in self._armed]
