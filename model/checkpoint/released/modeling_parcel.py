"""A released PARCEL checkpoint in torch: an image tower, the connector, a decoder.

    [ soft tokens of image 1 | ... of image I | BOS prefix separator | answer EOS ]

Images, prefix and separator attend to each other; an answer token attends to them and to the answer
before it. Other templates of prompts, such as LLaVA's, have text before the images, too, and each
token attends to those before it:

    [ BOS text | soft tokens of image 1 | ... of image I | prefix | answer EOS ]

The budget is the number of placeholders for soft tokens per image in `input_ids`; the processor
puts them there.

Tower and decoder are written out here, because names, masks and caches of transformers' own change
from release to release, and its Gemma-2 has a sliding window, which this model may not have. What
layers their families have, and whether the template is causal, is in `facts` of config.json.
Parameters have the names that transformers gave them in 2024. Only loading, `generate` and the
cache come from transformers.
"""

import dataclasses
import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from .configuration_parcel import ParcelConfig

MASKED = -2.3819763e38
"""Logit of a masked key; finite, so that a row whose keys are all masked does not become NaN."""

CACHE = next(
    field.name
    for field in dataclasses.fields(CausalLMOutputWithPast)
    if field.name in ("cache", "past_key_values")
)
"""Name of the key-value cache: transformers renamed it to `cache` in 2026."""

IGNORED = -100
"""Label of a token that is not learned."""


class Attention(nn.Module):
    """Multi-head attention from queries to keys and values, with biases everywhere."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Returns the output (B, N, C) of queries (B, N, C) over keys and values (B, S, C)."""
        # (B, N, C) -> (B, heads, N, C / heads).
        q, k, v = (
            layer(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for layer, x in ((self.q_proj, queries), (self.k_proj, keys), (self.v_proj, values))
        )
        read = F.scaled_dot_product_attention(q, k, v)
        return self.out_proj(read.transpose(1, 2).flatten(-2))


def activated(x: Tensor, activation: str) -> Tensor:
    """Returns `x` after an activation, which config.json names."""
    if activation == "quick_gelu":
        return x * torch.sigmoid(1.702 * x)
    return F.silu(x) if activation == "silu" else F.gelu(x, approximate="tanh")


class Mlp(nn.Module):
    """Two linear layers with an activation between them, by default a tanh-approximated GELU."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu_tanh") -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the transformed features (B, N, C)."""
        return self.fc2(activated(self.fc1(x), self.activation))


def layer_norm(width: int, eps: float = 1e-6) -> nn.LayerNorm:
    """Returns a LayerNorm; connectors have the default epsilon."""
    return nn.LayerNorm(width, eps=eps)


class VisionLayer(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        vision, facts = config.vision, config.facts["vision"]
        width, eps = vision["width"], facts["norm_eps"]
        self.layer_norm1 = layer_norm(width, eps)
        self.self_attn = Attention(width, vision["num_heads"])
        self.layer_norm2 = layer_norm(width, eps)
        self.mlp = Mlp(width, vision["mlp_dim"], facts["activation"])

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features after attention and MLP (B, P, C)."""
        y = self.layer_norm1(x)
        x = x + self.self_attn(y, y, y)
        return x + self.mlp(self.layer_norm2(x))


class VisionModel(nn.Module):
    """Patches, learned positions, blocks; some have a class token, and norms around the blocks."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        vision, self.facts = config.vision, config.facts["vision"]
        width, px, eps = vision["width"], vision["patch_px"], self.facts["norm_eps"]
        patches = (vision["image_px"] // px) ** 2
        self.has_class = self.facts["class_token"]
        # A convolution whose stride is its kernel cuts the image into patches and projects each.
        self.embeddings = nn.ModuleDict(
            {
                "patch_embedding": nn.Conv2d(
                    3, width, px, stride=px, bias=self.facts["patch_bias"]
                ),
                "position_embedding": nn.Embedding(patches + self.has_class, width),
            }
        )
        if self.has_class:
            token = nn.Parameter(torch.zeros(width))
            self.embeddings.register_parameter("class_embedding", token)
        # Its name is written so in transformers.
        self.pre_layrnorm = layer_norm(width, eps) if self.facts["norm_before"] else nn.Identity()
        layers = nn.ModuleList(VisionLayer(config) for _ in range(vision["depth"]))
        self.encoder = nn.ModuleDict({"layers": layers})
        self.post_layernorm = layer_norm(width, eps) if self.facts["norm_after"] else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        """Returns a feature per patch (B, P, C), row by row, of images (B, 3, H, W) in [-1, 1]."""
        # To the family's mean and spread of each colour, which are of pixels in [0, 1].
        images = images.float()
        mean, std = (images.new_tensor(self.facts[name])[:, None, None] for name in ("mean", "std"))
        images = images * (0.5 / std) + (0.5 - mean) / std
        patches = self.embeddings["patch_embedding"]
        x = patches(images.to(patches.weight.dtype)).flatten(2).transpose(1, 2)
        if self.has_class:
            token = self.embeddings.class_embedding.expand(len(x), 1, -1)
            x = torch.cat([token, x], 1)
        x = self.pre_layrnorm(x + self.embeddings["position_embedding"].weight[None])
        for layer in self.encoder["layers"]:
            x = layer(x)
        # The class token is no feature.
        return self.post_layernorm(x[:, 1:] if self.has_class else x)


def pool(features: Tensor, num_tokens: int) -> Tensor:
    """Returns the mean of each cell of a square grid of `num_tokens` cells, row by row."""
    patches = features.shape[1]
    if num_tokens == patches:
        return features
    # (B, side, kernel, side, kernel, C): a cell is kernel x kernel neighbouring patches. A grid of
    # 4 in 4 tokens is the means of a, b, c and d:
    #
    #     a a b b
    #     a a b b
    #     c c d d
    #     c c d d
    grid, side = math.isqrt(patches), math.isqrt(num_tokens)
    kernel = grid // side
    cells = features.unflatten(1, (side, kernel, side, kernel))
    return cells.mean((2, 4)).flatten(1, 2)


def sincos_positions(grid: int, like: Tensor) -> Tensor:
    """Returns fixed 2-D position features (grid * grid, C) in the dtype of `like` (..., C)."""
    width = like.shape[-1]
    # Computed on the CPU, since not every device has float64.
    steps = torch.arange(width // 4, dtype=torch.float64)
    frequencies = 10_000.0 ** (-steps / (width / 4))
    angles = torch.arange(grid)[:, None] * frequencies[None]
    axis = torch.cat([angles.sin(), angles.cos()], -1)
    columns, rows = axis.repeat(grid, 1), axis.repeat_interleave(grid, 0)
    return torch.cat([columns, rows], -1).to(like.device, like.dtype)


def official_positions(grid: int, like: Tensor) -> Tensor:
    """Returns the official MQT's positions (grid * grid, C), a table of float16, as `like` is."""
    width = like.shape[-1]
    # Rounded to float32 wherever the official code does.
    powers = torch.arange(width // 4).float() / torch.tensor(width / 4).float()
    waves = 1.0 / (10_000.0 ** powers.double()).float()
    angles = (torch.arange(grid).float()[:, None] * waves[None]).double()
    axis = torch.cat([angles.sin(), angles.cos()], -1)
    columns, rows = axis.repeat(grid, 1), axis.repeat_interleave(grid, 0)
    table = torch.cat([columns, rows], -1).float().half()
    return table.to(like.device, like.dtype)


class SelfAttention(nn.Module):
    """Self-attention among the soft tokens, with a residual connection."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        self.norm = layer_norm(config.vision["width"])
        self.attn = Attention(config.vision["width"], config.connector["num_heads"])

    def forward(self, x: Tensor) -> Tensor:
        """Returns the tokens after attending to each other (B, N, C)."""
        y = self.norm(x)
        return x + self.attn(y, y, y)


class ResidualMlp(nn.Module):
    """An MLP on every soft token, with a residual connection."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        self.norm = layer_norm(config.vision["width"])
        self.mlp = connector_mlp(config)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the transformed tokens (B, N, C)."""
        return x + self.mlp(self.norm(x))


def connector_mlp(config: ParcelConfig) -> Mlp:
    """Returns the connector's MLP; its hidden width defaults to that of the vision tower's MLPs."""
    return Mlp(config.vision["width"], config.connector["mlp_dim"] or config.vision["mlp_dim"])


def grid_of(config: ParcelConfig) -> int:
    """Returns the number of patches along one side."""
    return config.vision["image_px"] // config.vision["patch_px"]


class Vanilla(nn.Module):
    """Connector that passes the features on unchanged."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        return features


class M3(nn.Module):
    """Connector that pools the features to `budget` cells; also for ablations with one pooling."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        return pool(features, budget)


class M3SelfAttention(nn.Module):
    """Connector that pools the features, then lets the cells attend to each other."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        self.first = SelfAttention(config)
        self.second = SelfAttention(config)
        self.mlp = ResidualMlp(config)

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        return self.mlp(self.second(self.first(pool(features, budget))))


class TokenFlex(nn.Module):
    """Connector that pools the features to a square of any side, followed by a gated MLP."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        width = config.vision["width"]
        hidden = config.connector["mlp_dim"] or config.vision["mlp_dim"]
        self.norm = layer_norm(width)
        self.gate = nn.Linear(width, hidden)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        grid, side = round(features.shape[1] ** 0.5), round(budget**0.5)
        square = features.transpose(1, 2).unflatten(2, (grid, grid))
        cells = self.norm(F.adaptive_avg_pool2d(square, side).flatten(2).transpose(1, 2))
        return self.fc2(F.silu(self.gate(cells)) * self.fc1(cells))


class IdSelection(nn.Module):
    """Connector that chooses features which are important and unlike each other."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        # In turn, the token of the highest score is chosen, and the scores of tokens that are like
        # it fall. arXiv:2604.05601, equations 7 to 9.
        unit = F.normalize(features.float(), dim=-1)
        cosine = unit @ unit.transpose(1, 2)
        nearness = torch.exp(-20.0 * (1.0 - cosine).clamp(min=0.0) ** 2)
        scores = cosine.mean(dim=2)
        low, high = scores.amin(1, keepdim=True), scores.amax(1, keepdim=True)
        scores = (scores - low) / (high - low).clamp(min=1e-12)
        rows = torch.arange(len(features), device=features.device)
        chosen = []
        for _ in range(budget):
            best = scores.argmax(dim=1)
            scores = scores - nearness[rows, best] * scores[rows, best, None].abs()
            scores[rows, best] = -torch.inf
            chosen.append(best)
        places = torch.stack(chosen, dim=1).sort(dim=1).values
        return features[rows[:, None], places]


class Mqt(nn.Module):
    """Connector in which the first `budget` learned queries attend to the features."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        width, self.grid = config.vision["width"], grid_of(config)
        self.keys_have_content = config.connector["mqt_keys"] == "content"
        self.queries = nn.Parameter(torch.zeros(self.grid**2, width))
        self.query_norm = layer_norm(width)
        self.key_norm = layer_norm(width)
        self.value_norm = layer_norm(width)
        self.attn = Attention(width, config.connector["num_heads"])

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        positions = official_positions(self.grid, features)
        # Queries do not attend to each other, so the first `budget` alone give the same outputs as
        # they give among all.
        bank = (self.queries[:budget] + positions[:budget]).expand(len(features), -1, -1)
        keys = positions.expand_as(features)
        if self.keys_have_content:
            keys = keys + features
        return self.attn(self.query_norm(bank), self.key_norm(keys), self.value_norm(features))


class MqtSelfAttention(nn.Module):
    """Connector of MQT, followed by self-attention and an MLP."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        self.mqt = Mqt(config)
        self.attn = SelfAttention(config)
        self.mlp = ResidualMlp(config)

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        return self.mlp(self.attn(self.mqt(features, budget)))


class Parcel(nn.Module):
    """Connector with pooled anchors and learned queries.

    Anchors are passed on unchanged. Queries attend to anchors and each other, then to all features.
    Ablations attend to less before the features (`routing["reads"]`), or have one grid of anchors.
    """

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        width, heads = config.vision["width"], config.connector["num_heads"]
        self.grid = grid_of(config)
        self.anchor_counts = config.routing["anchor_counts"]
        self.reads = config.routing["reads"]
        self.key_positions = config.connector["parcel_key_positions"]
        # As many queries as any budget needs beside its anchors.
        bank = max(budget - self.num_anchors(budget) for budget in config.budgets)
        self.queries = nn.Parameter(torch.zeros(bank, width))
        if self.reads != "nothing":
            self.pool_norm = layer_norm(width)
            self.pool_attn = Attention(width, heads)
        self.query_norm = layer_norm(width)
        self.feature_norm = layer_norm(width)
        self.feature_attn = Attention(width, heads)
        self.mlp_norm = layer_norm(width)
        self.mlp = connector_mlp(config)

    def num_anchors(self, budget: int) -> int:
        """Returns how many of `budget` soft tokens are pooled anchors."""
        return max(count for count in self.anchor_counts if count <= budget)

    def forward(self, features: Tensor, budget: int) -> Tensor:
        """Returns `budget` soft tokens (B, N, C) of features (B, P, C)."""
        # The numbers of anchors are fixed; queries fill up the budget. With 16 and 64:
        #
        #     budget 16   [ 16 anchors ]
        #     budget 40   [ 16 anchors | 24 queries ]
        #     budget 64   [ 64 anchors ]
        num_anchors = self.num_anchors(budget)
        anchors = pool(features, num_anchors)
        if budget == num_anchors:
            return anchors
        x = self.queries[: budget - num_anchors].expand(len(features), -1, -1)
        if self.reads != "nothing":
            pooled = self.pool_norm(torch.cat([anchors, x], 1))
            keys = pooled[:, :num_anchors] if self.reads == "anchors" else pooled
            x = x + self.pool_attn(pooled[:, num_anchors:], keys, keys)
        keys = values = self.feature_norm(features)
        if self.key_positions:
            keys = keys + sincos_positions(self.grid, keys)
        x = x + self.feature_attn(self.query_norm(x), keys, values)
        return torch.cat([anchors, x + self.mlp(self.mlp_norm(x))], 1)


# The same classes as in the training code, written again in torch: who loads a release has
# neither JAX nor the training code. `routing["module"]` of config.json names one of them.
CONNECTORS = {
    module.__name__: module
    for module in (
        Vanilla,
        M3,
        M3SelfAttention,
        Mqt,
        MqtSelfAttention,
        Parcel,
        TokenFlex,
        IdSelection,
    )
}


class RmsNorm(nn.Module):
    """Divides the last axis by its root mean square, in float32; some store the scale minus 1."""

    def __init__(self, width: int, config: ParcelConfig) -> None:
        super().__init__()
        self.offset, self.eps = config.facts["text"]["norm_offset"], config.text["norm_eps"]
        self.weight = nn.Parameter(torch.full((width,), 1.0 - self.offset))

    def forward(self, x: Tensor) -> Tensor:
        """Returns `x` (B, L, D) with unit mean square, scaled."""
        full = x.float()
        normal = full * torch.rsqrt(full.square().mean(-1, keepdim=True) + self.eps)
        return (normal * (self.offset + self.weight.float())).to(x.dtype)


def softcap(x: Tensor, cap: float) -> Tensor:
    """Returns `cap * tanh(x / cap)`, or `x` if `cap` is 0."""
    return cap * torch.tanh(x / cap) if cap else x


def wavelengths(
    head_dim: int, base: float, scaling: dict[str, Any] | None, device: torch.device
) -> Tensor:
    """Returns wavelengths of rotary positions, over 2 pi (h / 2); see the training code."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
    lengths = base**exponents
    if not scaling:
        return lengths
    if scaling["kind"] == "linear":
        return lengths * scaling["factor"]
    # "llama3": slow rotations are divided in full, fast ones not at all, those between in part.
    turns = scaling["original_length"] / (2 * math.pi * lengths)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - share) / (lengths * scaling["factor"]) + share / lengths)


def rotate(x: Tensor, positions: Tensor, lengths: Tensor) -> Tensor:
    """Returns heads (B, H, L, h) with rotary positions; channels i and i + h / 2 turn as a pair."""
    angles = (positions[..., None].float() / lengths)[:, None]
    first, second = x.float().chunk(2, -1)
    sin, cos = angles.sin(), angles.cos()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


class TextAttention(nn.Module):
    """Grouped-query attention with rotary positions and soft-capped logits."""

    def __init__(self, config: ParcelConfig, number: int) -> None:
        super().__init__()
        text = config.text
        self.number, self.head_dim = number, text["head_dim"]
        self.cap = config.attn_softcap
        self.scale = (text["query_scale"] or self.head_dim) ** -0.5
        # Local layers may have positions of their own, which nothing stretches.
        self.rope: tuple[float, dict[str, Any] | None] = (text["rope_base"], text["rope_scaling"])
        if text["local_rope_base"] and is_local(config, number):
            self.rope = (text["local_rope_base"], None)
        has_norms = config.facts["text"]["head_norms"]
        self.q_norm = RmsNorm(self.head_dim, config) if has_norms else nn.Identity()
        self.k_norm = RmsNorm(self.head_dim, config) if has_norms else nn.Identity()
        q_width, kv_width = (text[name] * self.head_dim for name in ("num_heads", "num_kv_heads"))
        self.q_proj = nn.Linear(text["width"], q_width, bias=False)
        self.k_proj = nn.Linear(text["width"], kv_width, bias=False)
        self.v_proj = nn.Linear(text["width"], kv_width, bias=False)
        self.o_proj = nn.Linear(q_width, text["width"], bias=False)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, past: Cache | None) -> Tensor:
        """Returns the output (B, L, D) of rows `x` (B, L, D) over the keys in `mask` (B, L, S)."""
        # (B, L, heads * h) -> (B, heads, L, h).
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        lengths = wavelengths(self.head_dim, *self.rope, x.device)
        q, k = (
            rotate(norm(heads), positions, lengths)
            for norm, heads in ((self.q_norm, q), (self.k_norm, k))
        )
        # From here on keys and values are those of all S rows: the cached ones, then these L.
        if past is not None:
            k, v = past.update(k, v, self.number)
        # A key head serves several query heads in a row, so it is repeated for them.
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        logits = (q * self.scale).float() @ k.float().transpose(-1, -2)
        logits = softcap(logits, self.cap).masked_fill(~mask[:, None], MASKED)
        read = logits.softmax(-1).to(v.dtype) @ v
        return self.o_proj(read.transpose(1, 2).flatten(-2))


class GatedMlp(nn.Module):
    """An MLP with a gate, which the family's activation makes."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        text, self.activation = config.text, config.facts["text"]["activation"]
        self.gate_proj = nn.Linear(text["width"], text["mlp_dim"], bias=False)
        self.up_proj = nn.Linear(text["width"], text["mlp_dim"], bias=False)
        self.down_proj = nn.Linear(text["mlp_dim"], text["width"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the transformed rows (B, L, D)."""
        return self.down_proj(activated(self.gate_proj(x), self.activation) * self.up_proj(x))


def is_local(config: ParcelConfig, number: int) -> bool:
    """Returns whether a block of the decoder attends to the last positions only."""
    return (number + 1) % config.facts["text"]["local_period"] != 0


class TextLayer(nn.Module):
    """One block: a norm before both attention and the MLP, and in some families one after each."""

    def __init__(self, config: ParcelConfig, number: int) -> None:
        super().__init__()
        width = config.text["width"]
        self.norms_after = config.facts["text"]["norms_after"]
        self.input_layernorm = RmsNorm(width, config)
        self.self_attn = TextAttention(config, number)
        self.post_attention_layernorm = RmsNorm(width, config)
        self.mlp = GatedMlp(config)
        if self.norms_after:
            self.pre_feedforward_layernorm = RmsNorm(width, config)
            self.post_feedforward_layernorm = RmsNorm(width, config)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor, past: Cache | None) -> Tensor:
        """Returns the rows after the block (B, L, D)."""
        read = self.self_attn(self.input_layernorm(x), positions, mask, past)
        if not self.norms_after:
            # This norm is before the MLP; transformers names it for what comes before it.
            x = x + read
            return x + self.mlp(self.post_attention_layernorm(x))
        x = x + self.post_attention_layernorm(read)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class TextModel(nn.Module):
    """Embedding, blocks, a final norm."""

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__()
        text = config.text
        self.window = text["sliding_window"]
        self.is_local = [is_local(config, i) for i in range(text["depth"])]
        self.scaled = config.facts["text"]["scaled_embedding"]
        self.whole_prefix = config.facts["text"]["whole_prefix"]
        self.embed_tokens = nn.Embedding(text["vocab_size"], text["width"])
        self.layers = nn.ModuleList(TextLayer(config, i) for i in range(text["depth"]))
        self.norm = RmsNorm(text["width"], config)

    def embed(self, tokens: Tensor) -> Tensor:
        """Returns embeddings, in some families times the square root of the width (B, L, D)."""
        rows = self.embed_tokens(tokens)
        if not self.scaled:
            return rows
        return rows * torch.tensor(rows.shape[-1] ** 0.5, dtype=rows.dtype, device=rows.device)

    def forward(self, x: Tensor, places: Tensor, mask: Tensor, past: Cache | None) -> Tensor:
        """Returns the rows after all blocks and the final norm (B, L, D).

        Args:
          x: the rows (B, L, D).
          places: positions of all S rows, cached ones first (B, S).
          mask: true where a row attends to one of all S rows (B, L, S).
          past: key-value cache, to which these rows are added; None without a cache.
        """
        positions = places[:, -x.shape[1] :]
        near = self.near(positions, places, mask) if self.window else mask
        for layer, is_local in zip(self.layers, self.is_local, strict=True):
            x = layer(x, positions, mask & near if is_local else mask, past)
        return self.norm(x)

    def near(self, positions: Tensor, places: Tensor, mask: Tensor) -> Tensor:
        """Returns which of all S rows a local layer's window has (B, L, S)."""
        near = (positions[:, :, None] - places[:, None]).abs() < self.window
        if self.whole_prefix:
            # Of the new rows, which are the last, those that see each other do so at any distance.
            own = mask[..., -mask.shape[1] :]
            near[..., -mask.shape[1] :] |= own & own.transpose(1, 2)
        return near


class Projector(nn.ModuleDict):
    """One linear layer to the decoder's width, or two with a GELU between them."""

    def __init__(self, config: ParcelConfig) -> None:
        fan_in, width = config.vision["width"], config.text["width"]
        if config.projector == "linear":
            super().__init__({"linear": nn.Linear(fan_in, width)})
        else:
            first, second = nn.Linear(fan_in, width), nn.Linear(width, width)
            super().__init__({"linear_1": first, "linear_2": second})

    def forward(self, x: Tensor) -> Tensor:
        """Returns soft tokens (B, N, D) of features (B, N, C)."""
        if "linear" in self:
            return self["linear"](x)
        return self["linear_2"](F.gelu(self["linear_1"](x)))


class ParcelForConditionalGeneration(PreTrainedModel, GenerationMixin):
    """Model that answers prompts about images, at any budget that the connector serves."""

    config_class = ParcelConfig
    connector_class: ClassVar[Any] = None
    """Class of a connector that its author wrote; None takes the one that the config names."""
    main_input_name = "input_ids"
    _no_split_modules: ClassVar = ["VisionLayer", "TextLayer", *CONNECTORS]
    _supports_cache_class = True

    def __init__(self, config: ParcelConfig) -> None:
        super().__init__(config)
        self.vision_tower = nn.ModuleDict({"vision_model": VisionModel(config)})
        connector_class = self.connector_class or CONNECTORS[config.routing["module"]]
        self.connector = connector_class(config)
        self.multi_modal_projector = Projector(config)
        self.language_model = nn.ModuleDict({"model": TextModel(config)})
        if not config.text["tied"]:
            shape = config.text["width"], config.text["vocab_size"]
            self.lm_head = nn.Linear(*shape, bias=False)
        # Not a buffer: it is neither saved nor moved with the model.
        self._table: Tensor | None = None
        self._table_state: tuple[Any, ...] | None = None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model["model"].embed_tokens

    def soft_tokens(self, pixel_values: Tensor, budget: int) -> Tensor:
        """Returns the soft tokens (B, I * N, D) of images (B, I, 3, H, W) in [-1, 1].

        Raises:
          ValueError: if the connector does not serve the budget.
        """
        if budget not in self.config.budgets:
            raise ValueError(f"budget must be one of {self.config.budgets}, got {budget}.")
        # Tower and connector look at each image alone: (B, I, …) -> (B * I, …), and back at the
        # end.
        features = self.vision_tower["vision_model"](pixel_values.flatten(0, 1))
        tokens = self.multi_modal_projector(self.connector(features, budget))
        return tokens.unflatten(0, pixel_values.shape[:2]).flatten(1, 2)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        cache: Cache | None = None,
        **unused: Any,
    ) -> CausalLMOutputWithPast:
        """Returns float32 logits (B, L, V), and with `labels` the loss.

        Args:
          input_ids: token ids; each soft token has a placeholder (B, L).
          attention_mask: 0 on padding, also for cached tokens (B, S); None means no padding.
          pixel_values: images (B, I, 3, H, W) in [-1, 1]; needed if there are placeholders.
          token_type_ids: 1 on answer tokens, which attend to what is before them only, and 0 on
            the prompt (B, L). None means the tokens that have labels; without these, a prompt
            without an answer or, with a filled cache, an answer without a prompt. Not read where
            all tokens are causal.
          past_key_values: key-value cache of earlier tokens.
          use_cache: whether to make a cache if none is given.
          logits_to_keep: number of last tokens that logits are returned for; 0 means all.
          labels: token ids to learn, -100 elsewhere, each at its own place in `input_ids` (B, L);
            not to be combined with `logits_to_keep` or a cache.
          num_items_in_batch: number of labels that the loss is divided by, where several batches
            make one update; None takes those of this batch.
          cache: another name of `past_key_values`, which later releases of transformers use.
          unused: further arguments that `generate` of some releases passes.
        """
        past_key_values = past_key_values if cache is None else cache
        if labels is not None and (logits_to_keep or past_key_values is not None):
            raise ValueError("labels need logits of all tokens: no logits_to_keep and no cache.")
        text = self.language_model["model"]
        past = 0 if past_key_values is None else past_key_values.get_seq_length()
        if past_key_values is None and use_cache and labels is None:
            past_key_values = DynamicCache()
        batch, length = input_ids.shape
        if pixel_values is None:
            x = text.embed(input_ids)
        else:
            # The placeholder's id has no embedding, so it is replaced before the look-up.
            is_soft = input_ids == self.config.placeholder_id
            x = text.embed(input_ids.masked_fill(is_soft, 0))
            count = int(is_soft.sum()) // (batch * pixel_values.shape[1])
            soft = self.soft_tokens(pixel_values, count)
            x = x.masked_scatter(is_soft[..., None], soft.to(x.dtype))
        valid = x.new_ones(batch, past + length, dtype=torch.bool)
        if attention_mask is not None:
            valid = attention_mask[:, : past + length].bool()
        if token_type_ids is None and labels is not None:
            token_type_ids = (labels != IGNORED).long()
        if token_type_ids is None:
            token_type_ids = torch.full_like(input_ids, past > 0)
        if self.config.facts["prompt"]["causal"]:
            token_type_ids = torch.ones_like(input_ids)
        # Each answer token opens a step; a row attends to its own step and those before it.
        # A prompt p p and an answer a b. Answer tokens that are in the cache count as prompt here:
        # they are before all new rows, which is all that the mask needs to know.
        #
        #     type    0 0 1 1        p sees   1 1 . .
        #     step    0 0 1 2        a sees   1 1 1 .
        #                            b sees   1 1 1 1
        steps = F.pad(token_type_ids[:, -length:], (past, 0)).cumsum(1)
        mask = (steps[:, None] <= steps[:, past:, None]) & valid[:, None]
        # Padding takes no position: valid 0 0 1 1 1 gives -1 -1 0 1 2, and the first two are
        # masked.
        hidden = text(x, valid.long().cumsum(1) - 1, mask, past_key_values)
        # `-0` is 0, so 0 means all rows.
        logits = hidden[:, -logits_to_keep:].float() @ self._float_table().T
        logits = softcap(logits, self.config.final_softcap)
        loss = None
        if labels is not None:
            # The row before a token predicts it.
            targets = labels[:, 1:].to(logits.device)
            total = F.cross_entropy(
                logits[:, :-1].flatten(0, 1),
                targets.flatten(),
                ignore_index=IGNORED,
                reduction="sum",
            )
            count = num_items_in_batch
            loss = total / ((targets != IGNORED).sum().clamp(min=1) if count is None else count)
        return CausalLMOutputWithPast(loss=loss, logits=logits, **{CACHE: past_key_values})

    def _float_table(self) -> Tensor:
        """Returns the output matrix in float32; a converted copy is kept until it changes."""
        tied = self.config.text["tied"]
        weight = (self.language_model["model"].embed_tokens if tied else self.lm_head).weight
        if weight.dtype == torch.float32 or (torch.is_grad_enabled() and weight.requires_grad):
            return weight.float()
        # A write in place raises the version, and a move to another device the address.
        state = weight.data_ptr(), weight._version, weight.device
        if self._table_state != state:
            self._table, self._table_state = weight.detach().float(), state
        return self._table

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        pixel_values: Tensor | None = None,
        use_cache: bool = True,
        cache: Cache | None = None,
        **unused: Any,
    ) -> dict[str, Any]:
        """Returns the arguments of the next call of `forward`.

        Raises:
          ValueError: if there is no cache: it is what separates the prompt from the answer.
        """
        past_key_values = past_key_values if cache is None else cache
        if past_key_values is None:
            raise ValueError(
                "use_cache must be True: without the cache an answer reads as a prompt."
            )
        # The first call reads the prompt and its images; each later one reads the one token that is
        # not in the cache yet.
        past = past_key_values.get_seq_length()
        return {
            "input_ids": input_ids[:, past:],
            "attention_mask": attention_mask,
            "pixel_values": None if past else pixel_values,
            CACHE: past_key_values,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }
