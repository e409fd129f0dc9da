"""Checks that a connector keeps its promises, by running it: `parcel model check`.

    programs    one program per declared shape; the budget is an argument of it
    budgets     every budget gives its number of tokens
    dtypes      float32 parameters; tokens in the dtype of the features
    images      the tokens of an image do not depend on other images of its batch
    masking     a budget in a larger shape gives the tokens of its own shape
    gradients   ... and its gradients, all finite; every parameter has one
    nesting     a larger budget trains all parameters that a smaller one trains
    choice      features that are chosen are the same wherever they lie, also where all look alike

Masking is what lets a few compiled shapes serve every budget; nesting is what lets one set of
weights do so. Where anchors change between two budgets, a larger one may train fewer queries: only
budgets with the same anchors are compared.
"""

import dataclasses
import functools
import itertools
import sys
import typing
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int32

from infra.errors import raised_at
from model.connector import budgets
from model.connector.budgets import SlotBucket
from model.connector.build import build_connector
from model.connector.config import ConnectedConfig

CONTRACT_TOLERANCE = 1e-4
"""Largest relative error of tokens and gradients. float32 rounding gives 1.1e-5 for PARCEL at width
1152; reading a slot that should not be read gives about 1e-1."""

_FAINT = 1e-4
"""Share of the largest gradient below which a gradient may be rounding, such as a key's bias's."""

_BATCH, _SHAPES, _BUDGETS = 2, 3, 16
"""Number of images, of compiled shapes, and of budgets whose number of tokens is checked."""

_ALIKE = 0.9
"""Mean cosine of features that look alike, as a trained tower's do."""

_KEPT = 0.5
"""Least share of a choice that stays where features change places; at random, a quarter stays."""

_FAST = {"xla_backend_optimization_level": 0}
"""Programs run once; optimizing them would take most of the time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromiseCheck:
    """One promise, and whether it is kept.

    Attributes:
      name: name of the promise.
      holds: whether it holds.
      detail: how it is kept, or where it is broken; one line.
    """

    name: str
    holds: bool
    detail: str


class _Result(typing.NamedTuple):
    """One run: the tokens of a budget, and the gradients of a weighted sum of them."""

    tokens: Float[np.ndarray, "B N C"]
    by_params: list[np.ndarray]
    by_features: Float[np.ndarray, "B P C"]


def check_promises(cfg: ConnectedConfig) -> Iterator[PromiseCheck]:
    """Yields for each promise whether a connector keeps it; an exception breaks the promise.

    Args:
      cfg: config of the model that it is part of.
    """
    trial = _ConnectorTrial(cfg)
    first, *remaining = (
        *("programs", "budgets", "dtypes", "images", "masking", "gradients", "nesting", "choice"),
    )
    promise = _check_promise(trial, first)
    yield promise
    for name in remaining:
        # All other checks start by tracing its programs.
        yield (
            _check_promise(trial, name)
            if promise.holds
            else PromiseCheck(name=name, holds=False, detail=f"not tried, because {first} failed")
        )


def _check_promise(trial: "_ConnectorTrial", name: str) -> PromiseCheck:
    promise: Callable[[], str] = getattr(trial, name)
    try:
        return PromiseCheck(name=name, holds=True, detail=promise())
    except Exception as error:  # A user's connector may raise anything.
        # The user's own line, from which our code or JAX was called.
        module = sys.modules.get(trial.cfg.connector.kind.partition(":")[0])
        own = getattr(module, "__file__", None) or ""
        place = raised_at(error, own)
        where = f" ({place})" if own and place.startswith(f"{own}:") else ""
        return PromiseCheck(name=name, holds=False, detail=f"{_in_a_line(error)}{where}")


def check_connector_shapes(cfg: ConnectedConfig) -> None:
    """Checks without compiling that a connector can be built and traced, with the right dtypes.

    Args:
      cfg: config of the model that it is part of.

    Raises:
      ValueError: naming the promise that is broken, in one line.
    """
    trial = _ConnectorTrial(cfg)
    for name in ("programs", "dtypes"):
        if not (promise := _check_promise(trial, name)).holds:
            raise ValueError(f"{cfg.connector.kind} breaks {name!r}: {promise.detail}")


def drawn_features(cfg: ConnectedConfig, seed: int = 0) -> Float[np.ndarray, "B P C"]:
    """Returns random features of a few images, in float32."""
    shape = (_BATCH, cfg.vision.num_patches, cfg.vision.width)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def drawn_params(cfg: ConnectedConfig) -> typing.Any:
    """Returns random parameters of the connector, a nested dict; none of them is zero."""
    state = nnx.state(build_connector(cfg, rngs=nnx.Rngs(7)))
    # Parameters that start at zero (biases, a gate) would hide what depends on them.
    draw = np.random.default_rng(1)

    def with_noise(x: typing.Any) -> typing.Any:
        noise = 0.1 * draw.normal(size=x.shape).astype(np.float32)
        return x * (1 + noise) if np.any(x) else noise

    return jax.tree.map(with_noise, nnx.to_pure_dict(state))


class _BrokenError(Exception):
    """A promise is not kept."""


def _in_a_line(error: Exception) -> str:
    if isinstance(error, _BrokenError):
        return str(error)
    message = " ".join(str(error).split())
    if isinstance(error, jax.errors.ConcretizationTypeError):
        message = (
            "the budget is an argument of a program, without a value while it is made; cut by "
            "`bucket`, and mask by `jnp.arange(bucket) < budget`"
        )
    return f"{type(error).__name__}: {message:.300}"


class _ConnectorTrial:
    """A connector run on random features; its results are cached."""

    def __init__(self, cfg: ConnectedConfig) -> None:
        self.cfg = cfg
        self.supported = budgets.supported_budgets(cfg)
        self.shapes = budgets.buckets(cfg)
        self.features = drawn_features(cfg)
        self.weights = drawn_features(cfg, seed=2)
        self._results: dict[tuple[int, int], _Result] = {}

    def programs(self) -> str:
        """Traces every shape; code that reads the budget's value fails, as a trace has none."""
        for shape in self.shapes:
            self._trace_connector(shape.size, np.float32)
        return f"{len(self.shapes)} for {len(self.supported)} budgets"

    def budgets(self) -> str:
        checked = sorted(
            {*self.supported[:: -(-len(self.supported) // _BUDGETS)], self.supported[-1]}
        )
        for budget in checked:
            self._trace_connector(budget, np.float32)
        if checked == list(self.supported):
            return ", ".join(map(str, checked))
        return f"{len(checked)} of {len(self.supported)} from {checked[0]} to {checked[-1]}"

    def dtypes(self) -> str:
        for path, leaf in _connector_tree_leaves(self._abstract_connector[1]):
            if leaf.dtype != np.float32:
                raise _BrokenError(f"parameter {path} must be float32, got {leaf.dtype}")
        for dtype in (np.float32, jnp.bfloat16):
            tokens = self._trace_connector(self.shapes[-1].size, dtype)
            if tokens.dtype != dtype:
                raise _BrokenError(
                    f"features of {jnp.dtype(dtype).name} must give tokens of it, got "
                    f"{tokens.dtype}"
                )
        return "float32 and bfloat16"

    def images(self) -> str:
        size = self.shapes[-1].size
        alone = self._run_connector_at_budget(size, size).tokens
        for image in range(_BATCH):
            batch = self.weights.copy()
            batch[image] = self.features[image]
            tokens = self._run_connector_at_budget(size, size, batch).tokens[image]
            if (difference := _relative_difference(tokens, alone[image])) > CONTRACT_TOLERANCE:
                raise _BrokenError(
                    f"tokens of an image change by {difference:.1e} when other images of the batch "
                    "change"
                )
        return "each by itself"

    def masking(self) -> str:
        # A budget in a larger shape, as training runs it, against a program of its own size:
        #
        #     40 slots, budget 20   [ t0 … t19 | anything ]
        #     20 slots, budget 20   [ t0 … t19 ]              the same tokens
        if not (pairs := self._masked_pairs()):
            return "no slot is ever masked"
        # Shapes and budgets are those where most slots are masked: there, a leak shows best.
        for shape, budget in pairs:
            masked, exact = (
                self._run_connector_at_budget(shape.size, budget),
                self._run_connector_at_budget(budget, budget),
            )
            if (
                difference := _relative_difference(masked.tokens, exact.tokens)
            ) > CONTRACT_TOLERANCE:
                raise _BrokenError(
                    f"budget {budget} in {shape.size} slots differs by {difference:.1e} from "
                    f"budget {budget} alone; slots beyond the budget must not be read"
                )
        return f"equals truncation, budget {_describe_budget_pairs(pairs)} slots"

    def gradients(self) -> str:
        # At the largest budget every gradient must be finite; in each masked shape, it must be that
        # of the exact shape; and over all budgets together, each parameter must have one.
        largest = self._run_connector_at_budget(self.supported[-1], self.supported[-1])
        names = [
            *(path for path, _ in _connector_tree_leaves(self._abstract_connector[1])),
            "the features",
        ]
        for name, gradient in zip(names, [*largest.by_params, largest.by_features], strict=True):
            if not np.all(np.isfinite(gradient)):
                raise _BrokenError(f"of {name}, budget {self.supported[-1]}: not finite")
        for shape, budget in self._masked_pairs():
            masked, exact = (
                self._run_connector_at_budget(shape.size, budget),
                self._run_connector_at_budget(budget, budget),
            )
            reference = [*exact.by_params, exact.by_features]
            total_norm = np.sqrt(sum(float(np.sum(np.square(a))) for a in reference))
            for name, a, b in zip(
                names, [*masked.by_params, masked.by_features], reference, strict=True
            ):
                # A gradient that is much smaller than the whole has fewer correct digits.
                scale = max(float(np.linalg.norm(b)), 1e-2 * total_norm, 1e-30)
                if not (difference := float(np.linalg.norm(a - b)) / scale) <= CONTRACT_TOLERANCE:
                    raise _BrokenError(
                        f"of {name}, budget {budget} in {shape.size} slots: differs by "
                        f"{difference:.1e} from that of budget {budget} alone"
                    )
        if not np.any(largest.by_features):
            raise _BrokenError("the tokens do not depend on the features")
        # A parameter may rest at some budgets, but not at all of them.
        for i, (path, _) in enumerate(_connector_tree_leaves(self._abstract_connector[1])):
            cached_gradients = (run.by_params[i] for run in self._results.values())
            other_gradients = (
                self._run_connector_at_budget(budget, budget).by_params[i]
                for budget in self._distinct_budgets()
            )
            if not any(
                np.any(gradient) for gradient in itertools.chain(cached_gradients, other_gradients)
            ):
                raise _BrokenError(f"of {path}: zero at every budget tried; nothing trains it")
        return "those of truncation, finite" if self._masked_pairs() else "finite"

    def nesting(self) -> str:
        detail, budget_pairs = "", self._nested_pairs()
        # What a budget trains shows in its gradients: an entry that is exactly 0 is not trained.
        #
        #     budget 20 of `parcel`   q0 q1 q2 q3              16 anchors, 4 queries
        #     budget 40               q0 q1 q2 q3 … q23        trains all of them, and more
        for smaller, larger in budget_pairs:
            small, large = (
                self._run_connector_at_budget(smaller, smaller),
                self._run_connector_at_budget(larger, larger),
            )
            max_gradient = max((np.abs(a).max(initial=0.0) for a in small.by_params), default=0.0)
            for i, (path, _) in enumerate(_connector_tree_leaves(self._abstract_connector[1])):
                trained = np.abs(small.by_params[i]) > _FAINT * max_gradient
                untrained = trained & (large.by_params[i] == 0.0)
                # Of a million numbers, one may be 0 by chance, but not for other features as well.
                if np.any(untrained):
                    others = self._run_connector_at_budget(larger, larger, self.weights).by_params[
                        i
                    ]
                    untrained &= others == 0.0
                if num_untrained := int(np.sum(untrained)):
                    raise _BrokenError(
                        f"budget {smaller} trains {num_untrained} numbers of {path} that budget "
                        f"{larger} does not"
                    )
            # Reported, not required: where queries attend to each other, more of them change the
            # rest.
            prefix = (
                _relative_difference(large.tokens[:, :smaller], small.tokens) <= CONTRACT_TOLERANCE
            )
            detail = detail or ("" if prefix else "; its tokens are others")
        if not budget_pairs:
            return "one budget"
        detail = detail or "; its tokens are the first ones of a larger budget's"
        return f"a budget trains part of what a larger one trains{detail}"

    def choice(self) -> str:
        # A quarter of the features, before and after they change places:
        #
        #     features  a b c d e f g h    chosen  c f
        #               g c a h f b e d            c f    the same two, found elsewhere
        most = max(self.supported[0], self.features.shape[1] // 4)
        budget = max(budget for budget in self.supported if budget <= most)
        if (
            _feature_of_each_token(
                self._run_connector_at_budget(budget, budget).tokens, self.features
            )
            is None
        ):
            return "its tokens are no features"
        places = np.random.default_rng(3).permutation(self.features.shape[1])

        def share_kept(features: Float[np.ndarray, "B P C"]) -> float:
            images = np.arange(_BATCH)[:, None]
            before = _feature_of_each_token(
                self._run_connector_at_budget(budget, budget, features).tokens, features
            )
            shuffled = features[:, places]
            after = _feature_of_each_token(
                self._run_connector_at_budget(budget, budget, shuffled).tokens, shuffled
            )
            is_chosen = np.zeros(features.shape[:2], bool)
            is_chosen[images, before] = True
            return float(np.mean(is_chosen[images, places[after]]))

        unit = self.features / np.linalg.norm(self.features, axis=-1, keepdims=True)
        shared = unit[:, :1] * np.sqrt(_ALIKE / (1 - _ALIKE))
        if share_kept(self.features) < _KEPT:
            return "by place"
        if (kept := share_kept((unit + shared).astype(np.float32))) < _KEPT:
            raise _BrokenError(
                f"of features with a cosine of {_ALIKE} among themselves, {1 - kept:.0%} of the "
                f"{budget} chosen are others when their places change"
            )
        return "by content, also where features look alike"

    @functools.cached_property
    def _abstract_connector(self) -> tuple[typing.Any, typing.Any]:
        """Structure and shapes of the parameters."""
        module = nnx.eval_shape(lambda: build_connector(self.cfg, rngs=nnx.Rngs(0)))
        structure, state = nnx.split(module)
        return structure, nnx.to_pure_dict(state)

    @functools.cached_property
    def _random_connector_params(self) -> typing.Any:
        return drawn_params(self.cfg)

    def _connector_tokens(
        self, params: typing.Any, features: typing.Any, bucket: int, budget: Int32[Array, ""]
    ) -> typing.Any:
        connector = nnx.merge(self._abstract_connector[0], params)
        return connector(features, bucket=bucket, budget=budget)

    def _trace_connector(self, bucket: int, dtype: typing.Any) -> typing.Any:
        features = jax.ShapeDtypeStruct(self.features.shape, dtype)
        budget = jax.ShapeDtypeStruct((), np.int32)
        run = functools.partial(self._connector_tokens, bucket=bucket)
        tokens = jax.eval_shape(
            lambda params, x, b: run(params, x, budget=b),
            self._abstract_connector[1],
            features,
            budget,
        )
        expected_shape = (_BATCH, bucket, self.features.shape[-1])
        if getattr(tokens, "shape", None) != expected_shape:
            raise _BrokenError(
                f"bucket {bucket} must give an array of {expected_shape} (images, slots, vision "
                f"width), got {getattr(tokens, 'shape', None) or type(tokens).__name__}"
            )
        return tokens

    def _run_connector_at_budget(
        self, bucket: int, budget: int, features: typing.Any = None
    ) -> _Result:
        """Returns the tokens within the budget and the gradients; cached for default features."""
        if features is None and (bucket, budget) in self._results:
            return self._results[bucket, budget]

        def total(params: typing.Any, features: typing.Any, budget: typing.Any) -> typing.Any:
            tokens = self._connector_tokens(params, features, bucket, budget)
            # `where` and not a slice: the budget has no value while the program is traced. The
            # weights are random, so that errors in two tokens do not cancel.
            used = jnp.where((jnp.arange(bucket) < budget)[None, :, None], tokens, 0.0)
            return jnp.sum(used * self.weights[:, :bucket]), tokens

        # Gradients of parameters and features in one program, and the tokens with them.
        compute = jax.jit(
            jax.value_and_grad(total, argnums=(0, 1), has_aux=True), compiler_options=_FAST
        )
        inputs = self.features if features is None else features
        (_, tokens), (by_params, by_features) = compute(
            self._random_connector_params, inputs, np.int32(budget)
        )
        result = _Result(
            np.asarray(tokens)[:, :budget],
            [np.asarray(leaf) for _, leaf in _connector_tree_leaves(by_params)],
            np.asarray(by_features),
        )
        if not np.all(np.isfinite(result.tokens)):
            raise _BrokenError(f"tokens of budget {budget} are not finite")
        if features is None:
            self._results[bucket, budget] = result
        return result

    def _masked_pairs(self) -> list[tuple[SlotBucket, int]]:
        """Returns (shape, budget) pairs: for some shapes, the budget that masks most slots."""
        pairs = []
        for shape in self.shapes:
            bucket_budgets = [b for b in self.supported if budgets.bucket_of(self.cfg, b) == shape]
            if bucket_budgets and bucket_budgets[0] < shape.size:
                pairs.append((shape, bucket_budgets[0]))
        return _first_middle_last(pairs)

    def _distinct_budgets(self) -> list[int]:
        """Returns budgets that may train different parameters.

        For a pooling these are all budgets; otherwise, one for each number of anchors.
        """
        if self.cfg.connector.routing.reads is None:
            return list(self.supported)
        return [
            *{budgets.num_anchors(self.cfg, budget): budget for budget in self.supported}.values()
        ]

    def _nested_pairs(self) -> list[tuple[int, int]]:
        """Returns pairs of budgets with the same anchors, the smaller one first."""
        groups: dict[int, list[int]] = {}
        for budget in self.supported:
            groups.setdefault(budgets.num_anchors(self.cfg, budget), []).append(budget)
        pairs: list[tuple[int, int]] = []
        for group in _first_middle_last([*groups.values()]):
            sample = {group[len(group) // 4], group[len(group) // 2], group[-1]}
            pairs += itertools.pairwise(sorted(sample))
        return pairs


def _feature_of_each_token(
    tokens: Float[np.ndarray, "B N C"], features: Float[np.ndarray, "B P C"]
) -> Int32[np.ndarray, "B N"] | None:
    """Returns which feature each token is; None if some are none."""
    is_same = np.all(tokens[:, :, None] == features[:, None], axis=-1)
    return np.argmax(is_same, axis=2).astype(np.int32) if np.all(is_same.any(axis=2)) else None


_T = typing.TypeVar("_T")


def _first_middle_last(values: list[_T]) -> list[_T]:
    """Returns the first, a middle and the last one."""
    if len(values) <= _SHAPES:
        return values
    return [values[0], values[len(values) // 2], values[-1]]


def _describe_budget_pairs(pairs: list[tuple[SlotBucket, int]]) -> str:
    return ", ".join(f"{budget} in {shape.size}" for shape, budget in pairs)


def _connector_tree_leaves(tree: typing.Any) -> list[tuple[str, typing.Any]]:
    """Returns (path, leaf) of a tree; parts of a path are joined by "/"."""
    paths_and_leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [
        ("/".join(str(getattr(k, "key", k)) for k in path), leaf) for path, leaf in paths_and_leaves
    ]


def _relative_difference(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the largest difference, relative to the largest number; NaN counts as infinite."""
    difference = float(np.max(np.abs(a - b)) / max(float(np.max(np.abs(b))), 1e-30))
    return difference if np.isfinite(difference) else float("inf")
