"""FLOPs of one prefill and the size of its key-value cache, by the paper's formulas.

A multiply-add is two FLOPs; norms, activations, positions, softmax and the patch embedding are
left out. Source: PARCEL, appendix "FLOP and KV-Cache Calculations". A connector is counted by the
formula `flops` of its class (see `connector.base`) or, if it has none, by XLA.
"""

import dataclasses
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping

from model.config import ModelConfig
from model.connector import budgets
from model.connector.config import ConnectorConfig
from model.connector.costs import attention_flops, mlp_flops
from model.connector.registry import KINDS, flops_formula

BFLOAT16_BYTES = 2
PAPER_BUDGETS = (16, 64, 256)
"""Soft tokens per image of the paper's efficiency table."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Modality:
    """The size of a prompt.

    Attributes:
      name: name of the modality.
      num_images: images or frames, each with its own budget; 0 for text alone.
      text_tokens: tokens of the prefix.
    """

    name: str
    num_images: int
    text_tokens: int

    def __post_init__(self) -> None:
        for field, least in (("num_images", 0), ("text_tokens", 1)):
            if getattr(self, field) < least:
                raise ValueError(f"{field} must be at least {least}, got {getattr(self, field)}.")


IMAGE = Modality(name="image", num_images=1, text_tokens=128 + 1)
VIDEO = Modality(name="video", num_images=16, text_tokens=64 + 1)
PARTS = ("vision", "connector", "projector", "text")
"""Parts of a model, in the order in which a prompt passes them; paths of parameters begin with
them."""
ADAPTERS = "lora"
"""First part of the paths of the decoder's adapters (see `train.lora`)."""
MODALITIES = (IMAGE, VIDEO)
"""The paper's prompts: text is the longest prefix in PaliGemma's evaluations, and its separator."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flops:
    """FLOPs of one prefill, by part.

    Attributes:
      vision: the image tower, over all images, with the class token of some families.
      connector: the connector, between tower and projector.
      projector: the projection of soft tokens to the decoder's width.
      decoder: all blocks, over soft tokens and text.
      head: the vocabulary's logits at every text position.
    """

    vision: int
    connector: int
    projector: int
    decoder: int
    head: int

    @property
    def total(self) -> int:
        """The sum of the parts."""
        return sum(dataclasses.astuple(self))

    def __sub__(self, other: "Flops") -> "Flops":
        names = (field.name for field in dataclasses.fields(self))
        return Flops(**{name: getattr(self, name) - getattr(other, name) for name in names})


@dataclasses.dataclass(frozen=True, kw_only=True)
class EfficiencyCell:
    """One cell of the efficiency table.

    Attributes:
      connector: the method.
      budget: soft tokens per image.
      modality: "image" or "video".
      tflops: FLOPs of one prefill [1e12 FLOPs].
      kv_mb: size of its key-value cache [2**20 bytes], which the paper calls MB.
    """

    connector: str
    budget: int
    modality: str
    tflops: float
    kv_mb: float


def prefill_flops(cfg: ModelConfig, budget: int, modality: Modality) -> Flops:
    """Returns the FLOPs of one prompt's prefill, at a budget that the connector serves.

    Raises:
      ValueError: if it does not serve the budget.
    """
    budgets.check_budget(cfg, budget)
    vision, text, images = cfg.vision, cfg.text, modality.num_images
    tower_tokens, width = vision.num_tokens, vision.width
    # What is counted, and how often; the head reads text rows only:
    #
    #     image ─tower─▶ P features ─connector─▶ N soft tokens ─projector─▶ ┐ decoder ─▶ head
    #     ... for each of I images                                    text ─┘  once       once
    tokens = sequence_length(budget, modality)
    block = attention_flops(tower_tokens, tower_tokens, width)
    block += mlp_flops(tower_tokens, width, vision.mlp_dim)
    return Flops(
        vision=images * vision.depth * block,
        connector=images * connector_flops(cfg, budget),
        projector=images * _projector_flops(cfg, budget),
        decoder=text.depth * _decoder_block(cfg, tokens, tokens),
        head=2 * modality.text_tokens * text.width * text.vocab_size,
    )


def update_flops(
    cfg: ModelConfig,
    budget: int,
    modality: Modality,
    batch_size: int,
    *,
    trained: Collection[str] = PARTS,
    with_unread: bool = True,
) -> float:
    """Returns the FLOPs of one training update; recomputation to save memory does not count.

    Args:
      cfg: config of the model.
      budget: soft tokens per image.
      modality: the prompt, whose text includes the answer.
      batch_size: examples.
      trained: those of `PARTS` that have parameters which are not frozen, and `ADAPTERS` where the
        decoder has some; their own FLOPs are not counted.
      with_unread: whether `unread_flops` count, which the paper counts and our programs skip.
    """
    # Beside the forward pass, a part takes as much again for the gradient of its weights, if these
    # are trained, and as much for the gradient of its inputs, if something in or before it is:
    #
    #     trained             tower   connector   decoder
    #     all                 3       3           3
    #     all but the tower   1       3           3
    #     the connector       1       3           2
    forward = prefill_flops(cfg, budget, modality)
    if not with_unread:
        forward -= unread_flops(cfg, budget, modality)
    total, reached = 0, False
    for part, flops in {
        "vision": forward.vision,
        "connector": forward.connector,
        "projector": forward.projector,
        "text": forward.decoder + forward.head,
    }.items():
        reached = reached or part in trained or (part == "text" and ADAPTERS in trained)
        total += flops * (1 + (part in trained) + reached)
    return float(batch_size * total)


def kv_cache_bytes(
    cfg: ModelConfig, budget: int, modality: Modality, *, scalar_bytes: int = BFLOAT16_BYTES
) -> int:
    """Returns the size of the keys and values that one prefill caches, in all layers [bytes]."""
    return sequence_length(budget, modality) * kv_bytes_per_token(cfg, scalar_bytes=scalar_bytes)


def kv_bytes_per_token(cfg: ModelConfig, *, scalar_bytes: int = BFLOAT16_BYTES) -> int:
    """Returns the size of one token's keys and values in all layers [bytes]."""
    text = cfg.text
    # Keys and values, in the 3B model: 2 * 2 bytes * 26 layers * 4 heads * 256 = 104 KiB a token.
    return 2 * scalar_bytes * text.depth * text.num_kv_heads * text.head_dim


def sequence_length(budget: int, modality: Modality) -> int:
    """Returns the number of tokens in the decoder: soft tokens of every image, and the text."""
    # A photo at budget 64: 64 + 129 = 193 tokens. A video: 16 * 64 + 65 = 1089.
    return modality.num_images * budget + modality.text_tokens


def connector_flops(cfg: ModelConfig, budget: int) -> int:
    """Returns the FLOPs of the connector for one image, by its formula or, if it has none, XLA's.

    Raises:
      ValueError: if its formula does not return a count.
    """
    formula = flops_formula(cfg.connector.kind)
    if formula is None:
        # Imported here because it imports JAX, which places that need only formulas may lack.
        from model.analysis.xla_flops import counted_flops

        return counted_flops(cfg, budget)
    count = formula(cfg, budget)
    if not isinstance(count, int) or count < 0:
        raise ValueError(
            f"{cfg.connector.kind}.flops must return a count for one image, got {count!r:.60} for "
            f"budget {budget}."
        )
    return count


def unread_flops(cfg: ModelConfig, budget: int, modality: Modality) -> Flops:
    """Returns the FLOPs that the paper counts and our programs skip, as no output reads them.

    PARCEL's self-attention computes the rows of queries only; with unrolled layers, the decoder's
    last block computes the rows of text only.
    """
    connector = decoder = 0
    queries = budget - budgets.num_anchors(cfg, budget)
    reads = cfg.connector.routing.reads
    # The paper counts a row of the self-attention for each anchor too, but anchors pass unchanged.
    if cfg.connector.kind in KINDS and reads == "anchors and queries" and queries:
        width = cfg.vision.width
        full = attention_flops(budget, budget, width)
        connector = modality.num_images * (full - attention_flops(queries, budget, width))
    if not cfg.scan_layers:
        tokens = sequence_length(budget, modality)
        last = _decoder_block(cfg, modality.text_tokens, tokens)
        decoder = _decoder_block(cfg, tokens, tokens) - last
    return Flops(vision=0, connector=connector, projector=0, decoder=decoder, head=0)


def with_connectors(
    cfg: ModelConfig,
    settings: Mapping[typing.Any, ConnectorConfig] | None = None,
    extra_kinds: Iterable[str] = (),
) -> Iterator[ModelConfig]:
    """Yields the model with each connector that its sizes allow, vanilla first.

    Args:
      cfg: the model.
      settings: connector settings by kind, where they differ from the model's.
      extra_kinds: the user's own kinds of connectors, which come last.
    """
    for kind in (*KINDS, *extra_kinds):
        shared = dataclasses.replace(cfg.connector, buckets=())
        connector = (settings or {}).get(kind, shared).of_kind(kind)
        try:
            yield dataclasses.replace(cfg, connector=connector)
        except ValueError:
            if kind in extra_kinds:
                raise
            continue  # Its grid or width does not divide as this connector needs.


def efficiency(
    models: Iterable[ModelConfig],
    *,
    at: Iterable[int] | None = None,
    modalities: Iterable[Modality] = MODALITIES,
) -> list[EfficiencyCell]:
    """Returns the table: a row per model, budget and modality.

    Args:
      models: one per connector.
      at: budgets to list, if a model serves them; None lists all that it serves.
      modalities: prompts to list.
    """
    listed_budgets = None if at is None else set(at)
    rows = []
    for cfg in models:
        for budget in budgets.supported_budgets(cfg):
            if listed_budgets is None or budget in listed_budgets:
                rows += [efficiency_cell(cfg, budget, modality) for modality in modalities]
    return rows


def efficiency_cell(cfg: ModelConfig, budget: int, modality: Modality) -> EfficiencyCell:
    """Returns one cell of the table."""
    return EfficiencyCell(
        connector=cfg.connector.kind,
        budget=budget,
        modality=modality.name,
        tflops=prefill_flops(cfg, budget, modality).total / 1e12,
        kv_mb=kv_cache_bytes(cfg, budget, modality) / 2**20,
    )


def _projector_flops(cfg: ModelConfig, budget: int) -> int:
    """Returns the FLOPs of the projection of an image's soft tokens, in one layer or two."""
    width, text_width = cfg.vision.width, cfg.text.width
    second = text_width if cfg.projector == "mlp" else 0
    return 2 * budget * (width + second) * text_width


def _decoder_block(cfg: ModelConfig, rows: int, keys: int) -> int:
    """Returns the FLOPs of a block: keys and values of `keys` tokens, all else of `rows`.

    `rows` is smaller if only the last tokens' outputs are needed. Families differ in norms,
    activations and positions alone; a local layer computes all products and masks those out of
    reach.
    """
    # Projections: query and output once per query head, for each row; key and value once per key
    # head, for each key. Products: queries with keys, weights with values. MLP: gate, up, down. Two
    # FLOPs per multiply-add make the 4 of each pair, and the 6 of the three.
    text = cfg.text
    projections = (
        4 * text.width * text.head_dim * (rows * text.num_heads + keys * text.num_kv_heads)
    )
    products = 4 * rows * keys * text.num_heads * text.head_dim
    return projections + products + 6 * rows * text.width * text.mlp_dim
