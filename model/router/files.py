"""Names of files in artifacts: of routers, and of evaluations at budgets that a router chose.

router  head.npz, router.json, losses.jsonl
routed  needs.jsonl, beside the files of `predictions`
"""

HEAD, ROUTER, LOSSES = "head.npz", "router.json", "losses.jsonl"
"""A router's parameters, its settings, and the losses at every budget that it learned from."""

NEEDS = "needs.jsonl"
"""File beside predictions at chosen budgets: each item's probabilities, choice and scores."""

ANSWERS = "answers/"
"""Start of an input's role: `answers/64` is the role of the predictions at budget 64."""
