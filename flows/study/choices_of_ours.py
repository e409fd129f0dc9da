"""What is ours in the paper's study: where the paper and its sources say nothing, or otherwise.

The one list of it. Of studies that state `paper: true`, `parcel run --explain` prints it, and a
page of the reference shows it.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from flows.config.benchmark import TransferConfig, benchmark_of, eval_rows_of, training_of
from flows.report.text_lists import abbreviate_list
from flows.study.settings import REFERENCE
from flows.study.stage_list import stages_of
from flows.study.study import StudyConfig
from model.connector.registry import has_parameters
from model.train.config import TrainConfig

_MAX_NAMES = 3
"""Most keys named in a line; the others are counted."""

Found = list[tuple[str, Any]]
"""Config keys and their values; a value is None where the key alone says it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Deviation:
    """One thing that is not the paper's.

    Attributes:
      find: a study -> the config keys that say it, with their values; none where it is not so.
      why: what the paper or its sources say, and what is done instead; one or two sentences.
    """

    find: Callable[[StudyConfig], Found]
    why: str

    def subject(self, config: StudyConfig) -> str:
        """Returns the keys that say it, with their values; "" where it is not so in a study."""
        found = self.find(config)
        values = {_choice_value_text(value) for _, value in found}
        # One value is said once, after all its keys.
        if len(values) == 1:
            keys = abbreviate_list([key for key, _ in found], _MAX_NAMES)
            return f"{keys} {min(values)}".strip()
        named = [f"{key} {_choice_value_text(value)}".strip() for key, value in found]
        return abbreviate_list(named, _MAX_NAMES)


def choices_of_ours(config: StudyConfig) -> Iterator[tuple[str, str]]:
    """Yields (keys with values, why) of each of `DEVIATIONS` that is so in the paper's study.

    Nothing of a study that is not meant to be the paper's.
    """
    if config.paper:
        for deviation in DEVIATIONS:
            if subject := deviation.subject(config):
                yield subject, deviation.why


def stage_recipes(config: StudyConfig) -> Iterator[tuple[str, str, TrainConfig]]:
    """Yields (config key, name, recipe) of every stage."""
    for study in config.backbone_studies:
        for stage in stages_of(study):
            yield f"{stage.key}{study.backbone_suffix}", stage.name, stage.recipe


def transfer_recipes(config: StudyConfig) -> Iterator[tuple[str, str, TrainConfig]]:
    """Yields (config key, benchmark, recipe) of every fine-tuning."""
    for view in config.views:
        for name, train in view.fine_tunings.items():
            yield f"{view.key_prefix}transfers.{name}{view.backbone_suffix}", name, train


def _scored_transfers(config: StudyConfig) -> Iterator[tuple[str, str, TransferConfig]]:
    """Yields (config key, benchmark, its config) of every benchmark that is scored."""
    for view in config.views:
        for name, transfer in view.transfers.items():
            if transfer.transfer:
                yield f"{view.key_prefix}transfers.{name}{view.backbone_suffix}", name, transfer


def _has_connector(config: StudyConfig) -> bool:
    """Whether any method has parameters of its own."""
    trained = (config.connector_of(m) for m in config.methods if m != REFERENCE)
    return any(map(has_parameters, trained))


def _in_prepare(*fields: str, unless: Callable[[Any], bool] = lambda value: False):
    """Returns a finder of fields of `prepare` that do not have the source's value."""

    def find(config: StudyConfig) -> Found:
        values = {field: getattr(config.prepare, field) for field in fields}
        return [(f"prepare.{f}", value) for f, value in values.items() if not unless(value)]

    return find


def _in_model(field: str, unless: Callable[[Any], bool]) -> Callable[[StudyConfig], Found]:
    """Returns a finder of a field of `model` that does not have the source's value."""

    def find(config: StudyConfig) -> Found:
        value = getattr(config.model, field)
        return [] if unless(value) else [(f"model.{field}", value)]

    return find


def _in_stages(field: str, when: Callable[[TrainConfig], bool] = lambda train: True):
    """Returns a finder of a field in the recipes of stages for which `when` holds."""

    def find(config: StudyConfig) -> Found:
        recipes = [(key, train) for key, _, train in stage_recipes(config) if when(train)]
        return [(f"{key}.{field}", getattr(train, field)) for key, train in recipes]

    return find


def _in_tunings(field: str, when: Callable[[Any], bool], names: tuple[str, ...] = ()):
    """Returns a finder of a field in the recipes of transfers, where `when` holds of its value."""

    def find(config: StudyConfig) -> Found:
        return [
            (f"{key}.train.{field}", getattr(train, field))
            for key, name, train in transfer_recipes(config)
            if when(getattr(train, field)) and (not names or name in names)
        ]

    return find


def _in_methods(*names: str) -> Callable[[StudyConfig], Found]:
    """Returns a finder of the study's methods that have one of the names."""
    return lambda config: [("methods", name) for name in names if name in config.methods]


def _slow_warmups(config: StudyConfig) -> Found:
    return [
        (f"{key}.groups.{i}.warmup", group.warmup)
        for key, _, train in stage_recipes(config)
        for i, group in enumerate(train.groups)
        if group.warmup is not None
    ]


def _web_sources(config: StudyConfig) -> Found:
    return [(f"sources.{i}.reader", source.reader) for i, source in enumerate(config.sources)]


def _unscreened_splits(config: StudyConfig) -> Found:
    hygiene = config.hygiene
    if hygiene is None or hygiene.contamination != "remove":
        return [("hygiene.contamination", hygiene and hygiene.contamination)]
    return [] if hygiene.splits == "all" else [("hygiene.splits", hygiene.splits)]


def _likeness_settings(config: StudyConfig) -> Found:
    hygiene = config.hygiene
    if hygiene is None or hygiene.contamination == "off":
        return []
    fields = ("min_likeness", "candidates")
    return [(f"hygiene.{field}", getattr(hygiene, field)) for field in fields]


def _split_slices(config: StudyConfig) -> Found:
    found = []
    for key, name, transfer in _scored_transfers(config):
        train = transfer.train_split or benchmark_of(name, transfer).train_split
        if training_of(name, transfer) == name and "[" in train:
            found.append((f"{key}.train_split", train))
        scored = [row.split for row in eval_rows_of(name, transfer) if "[" in row.split]
        found += [(f"{key}.eval_splits", split) for split in scored]
    return found


def _pseudo_splits(config: StudyConfig) -> Found:
    found = []
    for key, name, transfer in _scored_transfers(config):
        if name == "stvqa":
            found += [(f"{key}.eval_splits", row.split) for row in eval_rows_of(name, transfer)]
    return found


def _written_labels(config: StudyConfig) -> Found:
    return [(key, None) for key, name, _ in _scored_transfers(config) if name == "ai2d"]


def _video_benchmarks(config: StudyConfig) -> Found:
    return [
        (key, None)
        for key, name, transfer in _scored_transfers(config)
        if benchmark_of(name, transfer).num_frames
    ]


def _video_strides(config: StudyConfig) -> Found:
    found = []
    for key, name, transfer in _scored_transfers(config):
        benchmark = benchmark_of(name, transfer)
        if benchmark.num_frames:
            found.append((f"{key}.frame_stride", transfer.frame_stride or benchmark.frame_stride))
    return found


def _eight_frames(config: StudyConfig) -> Found:
    found = []
    for key, name, transfer in _scored_transfers(config):
        frames = transfer.num_frames or benchmark_of(name, transfer).num_frames
        if name == "msvd_qa" and frames != 16:
            found.append((f"{key}.num_frames", frames))
    return found


def _vanilla_again(config: StudyConfig) -> Found:
    train = config.intermediary
    if train is None or config.stage1 is None or REFERENCE not in config.methods:
        return []
    return [] if train.rsqrt_shift else [("intermediary.rsqrt_shift", train.rsqrt_shift)]


def _stages_after_others(config: StudyConfig) -> Found:
    return [(key, None) for key, *_ in list(stage_recipes(config))[1:]]


def _new_queries(config: StudyConfig) -> Found:
    if config.stage2 is None or not _has_connector(config):
        return []
    return [("stage2.train.warmup", config.stage2.train.warmup)]


def _frozen_connectors(config: StudyConfig) -> Found:
    frozen = _in_tunings("freeze_vision", lambda freeze: freeze == "all")
    return frozen(config) if _has_connector(config) else []


def _has_parcel(config: StudyConfig) -> bool:
    """Whether PARCEL or one of its ablations is among the methods."""
    return any(config.connector_of(m).startswith("parcel") for m in config.methods)


def _parcel_block(config: StudyConfig) -> Found:
    return [("methods", "parcel")] if _has_parcel(config) else []


def _parcel_bank(config: StudyConfig) -> Found:
    fields = ("query_std", "parcel_key_positions") if _has_parcel(config) else ()
    return [(f"model.connector.{f}", getattr(config.model.connector, f)) for f in fields]


def _shared_draws(config: StudyConfig) -> Found:
    elastic = [method for method in config.methods if method != REFERENCE]
    return [("budgets", None)] if elastic else []


def _shared_seeds(config: StudyConfig) -> Found:
    paired = config.num_seeds > 1 and REFERENCE in config.methods
    return [("num_seeds", config.num_seeds)] if paired else []


DEVIATIONS = (
    # The model.
    Deviation(
        find=_in_model("dtype", lambda dtype: dtype == "float32"),
        why="activations of big_vision are float32; weights and moments are so here, too.",
    ),
    Deviation(
        find=_parcel_block,
        why="norms, residuals, biases, the activation, the initial matrices and the place of the "
        "MLP in PARCEL's two blocks are not published; they are as in SigLIP, the MLP last.",
    ),
    Deviation(
        find=_parcel_bank,
        why="how PARCEL's queries begin, and whether they, the anchors or the keys have positions, "
        "is not published: MQT's deviation, normal and cut at two deviations; no positions, since "
        "SigLIP's features have theirs.",
    ),
    # The paper's ablations, each a name in its Table 3 and a sentence.
    Deviation(
        find=_in_methods("parcel_fixed4", "parcel_fixed2"),
        why="at which budgets a fixed routing is trained is not published: every even number from "
        "that of its anchors up to 256 at 224 px, with as many queries as the largest needs.",
    ),
    Deviation(
        find=_in_methods("parcel_vit_only"),
        why="the paper's queries read the features without the anchors; that its other parts are "
        "PARCEL's is ours.",
    ),
    Deviation(
        find=_in_methods("parcel_dual"),
        why="the paper's queries read the anchors, then the features. That this is PARCEL's first "
        "attention with the anchors alone as keys, and all else PARCEL's, is ours.",
    ),
    Deviation(
        find=_in_methods("mqt_sa"),
        why='the paper adds "comparable self-attention blocks": one, and an MLP, after the '
        "cross-attention, since queries before it have seen no image.",
    ),
    Deviation(
        find=_in_methods("m3_sa"),
        why='the paper adds "comparable self-attention blocks": two, and an MLP, after the '
        "pooling, which are about as many parameters as PARCEL has.",
    ),
    # Data.
    Deviation(
        find=_web_sources,
        why="WebLI, CC3M-35L and the rest of PaliGemma's mixture are not public; archives of "
        "annotated pictures stand for them.",
    ),
    Deviation(
        find=_in_prepare("examples_per_task"),
        why="how many questions, languages and objects a picture of PaliGemma's mixture has is not "
        "published.",
    ),
    Deviation(
        find=_in_prepare("augment_resize", "augment_jpeg", "augment_crop"),
        why="PaliGemma draws the resize method, encodes as JPEG again and crops slightly "
        "(arXiv:2407.07726, section 3.2.6); shares and strength are not published. Filters and "
        "qualities are big_vision's, less Mitchell's filter and the choice of a DCT; each picture "
        "is changed once, when it is prepared.",
    ),
    Deviation(
        find=_in_prepare("num_windows"),
        why="PaliGemma draws a clip's frames at each visit; here each visit takes one of so many "
        "stored windows.",
    ),
    Deviation(
        find=_in_prepare("encoding", unless=lambda encoding: encoding == "png"),
        why="big_vision's transfers read resized pixels as they are; stored as JPEG of quality 95 "
        "they are 1.3 to 1.6 grey levels off in the mean. png keeps what was resized, to whole "
        "grey levels, and takes three times the disk.",
    ),
    Deviation(
        find=_in_prepare("image_px"),
        why="of an antialiased resize, big_vision cuts values down to whole grey levels; here they "
        "are rounded, which makes a picture half a level brighter.",
    ),
    Deviation(
        find=_video_benchmarks,
        why="big_vision keeps the resized values of a video's frames as they are; here they are "
        "cut down to whole grey levels, which makes a frame half a level darker.",
    ),
    Deviation(
        find=_likeness_settings,
        why="what counts as a near-duplicate is not published; here a likeness of edges, of so "
        "many candidates for each picture.",
    ),
    Deviation(
        find=_unscreened_splits,
        why="PaliGemma's mixture has no near-duplicate of a picture of any split of the transfers.",
    ),
    # Pretraining.
    Deviation(
        find=_in_stages("rsqrt_timescale", lambda train: train.schedule == "rsqrt"),
        why="PaliGemma's is not published; big_vision's default.",
    ),
    Deviation(
        find=_in_stages("warmup", lambda train: train.warmup > 0),
        why='PaliGemma\'s decoder has a "short" warm-up or none.',
    ),
    Deviation(
        find=_slow_warmups,
        why="SigLIP has a slow linear warm-up of unpublished length. The paper gives the connector "
        "the projector's schedule; that this is SigLIP's is ours.",
    ),
    Deviation(
        find=_in_stages("grad_clip"),
        why="not published for pretraining; as in transfers.",
    ),
    *(
        Deviation(find=_in_stages(field), why="not published for pretraining.")
        for field in ("weight_decay", "label_smoothing", "dropout")
    ),
    Deviation(
        find=lambda config: [(f"{key}.mixture", None) for key, *_ in stage_recipes(config)],
        why="PaliGemma names its tasks and not their weights. At 448 px it has more of ocr, detect "
        "and segment than at 224.",
    ),
    Deviation(
        find=_vanilla_again,
        why="the paper continues vanilla for as many samples and restarts the schedule of "
        "connectors; here vanilla's restarts as well, warm-up included. The other reading is "
        "rsqrt_shift 12085 and no warm-up.",
    ),
    Deviation(
        find=_stages_after_others,
        why="whether a stage goes on with Adam's moments of the one before is not published; they "
        "begin at zero, in Stage 2 without a warm-up.",
    ),
    Deviation(
        find=_new_queries,
        why="the paper expands the bank of queries at 448 px, MQT's by 768 and PARCEL's by 576; "
        "how the new ones begin is not published. They have no warm-up of their own, and MQT's "
        "trained ones take places of the larger grid.",
    ),
    Deviation(
        find=_shared_draws,
        why="in training, a budget is drawn once per update for all devices; the official MQT "
        "draws in each process.",
    ),
    # Transfers.
    Deviation(
        find=_split_slices,
        why="TensorFlow Datasets slices a split in the order of its own hashes, which other "
        "readers cannot know; here it is that of other hashes. So VQAv2's minival has other "
        "questions.",
    ),
    Deviation(
        find=_pseudo_splits,
        why="ST-VQA has no validation split, and the list of pictures behind the usual one is not "
        "published; hashes of their paths choose about as many questions.",
    ),
    Deviation(
        find=_written_labels,
        why="big_vision writes AI2D's labels in DM Sans; here they are in Aileron, Pillow's own.",
    ),
    Deviation(
        find=_frozen_connectors,
        why="big_vision freezes img/.* there, the tower with the projector. The connector, to "
        "which the paper gives the projector's schedule, is frozen with it.",
    ),
    Deviation(
        find=_in_tunings(
            "peak_lr", lambda _: True, ("gqa", "ocrvqa", "tallyqa", "activitynet_cap")
        ),
        why="ties among PaliGemma 2's best rates (3e-6 and 6e-6, 1e-6 and 3e-6, 6e-6 to 1e-5, 3e-6 "
        "and 1e-5 of GQA, OCR-VQA, TallyQA, ActivityNet-CAP); the lowest.",
    ),
    Deviation(
        find=_in_tunings("weight_decay", lambda decay: decay > 0),
        why="PaliGemma 2 changes the rates of PaliGemma's transfers and does not say whether decay "
        "follows; it stays a tenth of PaliGemma's rate. It is of .*/kernel, as in big_vision, and "
        "so of the connector's kernels, too.",
    ),
    Deviation(
        find=_video_strides,
        why="PaliGemma's distances between frames are in frames of unstated videos; they are "
        "counted at 25 frames a second.",
    ),
    Deviation(
        find=_eight_frames,
        why="PaliGemma's text has 16 frames for all videos, its config of MSVD-QA 8 with a stride "
        "of 26; the config's.",
    ),
    Deviation(
        find=_shared_seeds,
        why="the paper prints no spread for vanilla; here it has the seeds of all methods, and "
        "differences are paired.",
    ),
)


def _choice_value_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
