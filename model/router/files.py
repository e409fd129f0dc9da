"""Names of the files in artifacts of routers, and of evaluations at chosen budgets.

router  head.npz, router.json, losses.jsonl
routed  needs.jsonl, beside the files of `predictions`
"""

HEAD, ROUTER, LOSSES = "head.npz", "router.json", "losses.jsonl"
"""A router's parameters, its settings, and the losses at every budget that it learned from."""

NEEDS = "needs.jsonl"
"""Beside predictions at budgets chosen per item: the chances, the choice, the scores at each."""

ANSWERS = "answers/"
"""Begins the role of the predictions at one budget, as an input of these; the budget ends it."""
