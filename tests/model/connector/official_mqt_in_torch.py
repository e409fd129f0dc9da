"""Runs the official MQT on given weights: FILE GIVEN FOUND BUDGET…, in a Python that has torch.

FILE is MQT-LLaVA's builder.py. GIVEN has our weights by path, features and the number of heads;
FOUND gets the tokens by budget, before the last matrix, in float64.
"""

import importlib.util
import sys

import numpy as np
import torch

file, given_path, found_path, *budgets = sys.argv[1:]
spec = importlib.util.spec_from_file_location("builder", file)
builder = importlib.util.module_from_spec(spec)
spec.loader.exec_module(builder)

given = np.load(given_path)
features = torch.from_numpy(given["features"]).double()
grid, width = round(features.shape[1] ** 0.5), features.shape[2]
official = builder.Resampler(grid, width, int(given["heads"]), kv_dim=width).double()
names = ("query", "key", "value")
weights = {
    # Our projector comes in the place of the last matrix.
    "proj": np.eye(width),
    "query": given["queries"],
    "attn.in_proj_weight": np.concatenate([given[f"attn/{name}/kernel"].T for name in names]),
    "attn.in_proj_bias": np.concatenate([given[f"attn/{name}/bias"] for name in names]),
    "attn.out_proj.weight": given["attn/out/kernel"].T,
    "attn.out_proj.bias": given["attn/out/bias"],
}
for name in names:
    weights[f"ln_{name[0]}.weight"] = given[f"{name}_norm/scale"]
    weights[f"ln_{name[0]}.bias"] = given[f"{name}_norm/bias"]
if "positions" in given:
    weights["pos_embed"] = given["positions"]
state = {name: torch.from_numpy(np.array(value)).double() for name, value in weights.items()}
missing, unknown = official.load_state_dict(state, strict=False)
# The table of positions is the file's own, unless it is given.
assert (missing, unknown) == ([] if "positions" in given else ["pos_embed"], []), (missing, unknown)
torch.set_grad_enabled(False)
if int(budgets[-1]) > 256:
    # The file's own check of a number of tokens knows its 256 queries only.
    builder.get_matry_n = int
found = {b: official(features, int(b), tgt_size=(grid, grid)).numpy() for b in budgets}
np.savez(found_path, **found)
