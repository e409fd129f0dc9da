"""What holds for every test: JAX on CPU, and no silent promotion of dtypes or ranks.

Set through the environment, before anything imports JAX: tests without JAX never load it.
"""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUMPY_DTYPE_PROMOTION", "strict")
os.environ.setdefault("JAX_NUMPY_RANK_PROMOTION", "raise")
