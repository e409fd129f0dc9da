"""Fills in what a user's config leaves out, before it becomes a `StudyConfig`.

The values have the types of the config's fields already (`validation.partial_adapter`), and a
setting that is not stated is a key that is not there: only so can a default of the study, of the
benchmark's recipe or of the base of Stage 2 be told from a value that the user chose.

    stated                                     normalised
    model: {vision: {image_px: 448}}           model: {vision: {image_px: 448}}
                                               prepare: {image_px: 448}
    methods: [./mine.py:Ripple]                methods: ["mine:Ripple"]
                                               connector_files: {"mine:Ripple": /home/…/mine.py}
    transfers: {nlvr: {train: {epochs: 3}}}    transfers: {nlvr: {train: {epochs: 3,
                                                 batch_size: 256, peak_lr: …, …}}}
    model: {text: {family: gemma3-4b}}         model: {text: {family: gemma3, width: 2560, …},
                                                 attn_softcap: 0, final_softcap: 0}
    backbones: {siglip2+llama: {}}             backbones: {siglip2+llama: {model:
                                                 {vision: {…}, text: {…}}}}
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from flows.config.backbone import AS_STUDY
from flows.config.benchmark import recipe_of, trained_on, user_benchmark
from flows.config.model_families import check_backbone_name, with_backbone_parts, with_family
from flows.config.references import connector_reference
from flows.config.stages import Stage2Config
from flows.config.validation import config_adapter
from flows.steps.kinds.tokenizer import TokenizerConfig
from infra.references import file_reference
from model.config import ModelConfig
from model.connector.registry import KINDS
from model.text.registry import decoder_family
from model.train.config import TrainConfig
from pipelines.records.codes import EXTRA_TOKENS
from pipelines.sources.registry import BENCHMARKS

Values = dict[str, Any]
"""Plain values of a config; a key that is not there is a setting that is not stated."""


def normalise(stated: Values) -> Values:
    """Returns a study's values with all that the user left out and that is no constant.

    The order matters:

    1. Connectors get the names by which steps know them. This comes first because nothing else may
       read a `kind` before it is known to be ours: making a `ConnectorConfig` of it imports it.
    2. Stage 2 takes its transfers from the study's, before these are completed: a size or a recipe
       that is filled in for 224 px is none that the user stated for 448 px.
    3. Backbones get their towers, decoders and stages, from what the study states of its own.
    4. The tower and the decoder get the values of the sizes that are named for them.
    5. Every `prepare` gets the image size of its resolution.
    6. Every transfer gets the registry's recipe for that size.

    Raises:
      ValueError: if a connector, a tower or a decoder does not exist, or this process may not
        import the connector.
      ValidationError: if a zero-shot benchmark states a recipe of its own beside its parent.
    """
    # 1: names. Everything below finds settings by method.
    values = _resolve_connectors(stated)
    transfers = values.get("transfers", {})
    # 2: Stage 2, while `transfers` still holds only what the user stated.
    if (stage2 := values.get("stage2")) is not None:
        values["stage2"] = _normalised_resolution(stage2, transfers, ("stage2",))
    if "stages" in values:
        values["stages"] = tuple(
            {
                **stage,
                "resolution": _normalised_resolution(
                    resolution, transfers, ("stages", i, "resolution")
                ),
            }
            if (resolution := stage.get("resolution")) is not None
            else stage
            for i, stage in enumerate(values["stages"])
        )

    # 3: backbones, while `model` still holds only what the user stated.
    if "backbones" in values:
        values["backbones"] = {
            name: _normalised_backbone(name, backbone, values)
            for name, backbone in values["backbones"].items()
        }
    # 4: the model, whose tower may say the image size.
    if "model" in values:
        values["model"] = _with_families(values["model"], values.get("tokenizer", {}))

    # 5 and 6: image sizes and recipes of the study itself.
    px = ModelConfig().vision.image_px
    if "model" in values and "vision" in values["model"]:
        px = values["model"]["vision"].get("image_px", px)
    values["prepare"] = {"image_px": px, **values.get("prepare", {})}
    if "sources" in values:
        values["sources"] = tuple(_with_prepare_px(source, px) for source in values["sources"])
    if watch := values.get("watch"):
        sources = tuple(_with_prepare_px(source, px) for source in watch.get("sources", ()))
        values["watch"] = {**watch, "sources": sources}
    values["transfers"] = _with_recipes(transfers, px, ("transfers",))
    return values


def _with_families(stated: Values, tokenizer: Values) -> Values:
    """Returns a model's values with those that the families of its parts decide."""
    model = {**stated}
    if "vision" in stated:
        model["vision"] = with_family("vision", stated["vision"])
    if "family" not in (text := stated.get("text", {})):
        return model
    model["text"] = with_family("text", text)
    if "vocab_size" not in text and (rows := _trained_rows(tokenizer)) is not None:
        model["text"]["vocab_size"] = rows
    if not decoder_family(model["text"]["family"]).softcaps:
        model = {"attn_softcap": 0.0, "final_softcap": 0.0, **model}
    return model


def _trained_rows(tokenizer: Values) -> int | None:
    """Returns the rows of a decoder with a tokenizer that is trained here; None with another.

    A tokenizer of one's own is that of the published size; one that is trained here has as many
    pieces as the study says.
    """
    if tokenizer.get("path") is not None:
        return None
    return tokenizer.get("vocab_size", TokenizerConfig.vocab_size) + len(EXTRA_TOKENS)


def _normalised_backbone(name: str, stated: Values, study: Values) -> Values:
    """Returns the values of a backbone, its model and its stages laid over the study's.

    Args:
      name: its name.
      stated: its values as stated.
      study: the study's values, of which `model` is as stated.
    """
    # A run's record has every field, also those that are as in the study.
    values: Values = {
        key: value
        for key, value in stated.items()
        if value not in (AS_STUDY, {})
        and not (value is None and key not in ("start", "stage1", "intermediary"))
    }
    model = {key: value for key, value in values.get("model", {}).items() if value is not None}
    values["model"] = model
    check_backbone_name(name, {key: value for key, value in values.items() if value != {}})
    of_study = study.get("model", {})
    tokenizer = values.get("tokenizer", study.get("tokenizer", {}))
    values["model"] = with_backbone_parts(name, model, of_study, _trained_rows(tokenizer))
    if "connector" in model:
        shared = {k: v for k, v in of_study.get("connector", {}).items() if k != "buckets"}
        values["model"]["connector"] = {**shared, **model["connector"]}
    for stage in ("stage1", "intermediary"):
        if values.get(stage) is not None:
            values[stage] = _merge_values(study.get(stage), values[stage])
    return values


def _normalised_resolution(
    resolution: Values, base: Values, field: tuple[str | int, ...]
) -> Values:
    """Returns the values of Stage 2, or of a stage at another resolution.

    Args:
      resolution: the values as stated.
      base: the study's transfers, as the user stated them.
      field: config key of the values, for errors.
    """
    px = resolution.get("image_px", Stage2Config.image_px)
    values = _with_prepare_px(resolution, px).copy()
    if (sources := values.get("sources")) is not None:
        values["sources"] = tuple(_with_prepare_px(source, px) for source in sources)
    transfers = _merge_transfers(base, values.get("transfers") or {})
    values["transfers"] = _with_recipes(transfers, px, (*field, "transfers"))
    return values


def _resolve_connectors(stated: Values) -> Values:
    """Returns a study's values with methods named as steps name connectors.

    The file of each user's class is recorded in `connector_files`, so that another process can
    import it.
    """
    variants = stated.get("variants", {})
    files = dict(stated.get("connector_files", {}))
    names: dict[str, str] = {}

    def resolved_name(field: str, method: str) -> str:
        if method in KINDS or method in variants:
            return method
        if method not in names:
            # A recorded config has "mine:Ripple" and, beside it, the file that this came from.
            reference = f"{files[method]}:{method.partition(':')[2]}" if method in files else method
            names[method] = connector_reference(field, reference)
            if file := file_reference(reference):
                files[names[method]] = str(file[0])
        return names[method]

    # First everything that must not be a user's class, then everything that may be one: from here
    # on a name is resolved once, wherever and however often the config has it.
    #
    #   methods: [parcel, ./mine.py:Ripple]       methods: [parcel, "mine:Ripple"]
    #   connectors: {./mine.py:Ripple: {…}}       connectors: {"mine:Ripple": {…}}
    #                                             connector_files: {"mine:Ripple": /home/…/mine.py}
    _check_connector_kind("model.connector", stated.get("model", {}).get("connector", {}))
    stage2 = stated.get("stage2")
    for method, connector in stated.get("connectors", {}).items():
        _check_connector_kind(f"connectors.{method}", connector)
    resolutions = {"stage2": stage2}
    resolutions |= {
        f"stages.{i}.resolution": stage.get("resolution")
        for i, stage in enumerate(stated.get("stages", ()))
    }
    for name, backbone in stated.get("backbones", {}).items():
        field = f"backbones.{name}"
        connector = backbone.get("model", {}).get("connector") or {}
        _check_connector_kind(f"{field}.model.connector", connector)
        for method, connector in backbone.get("connectors", {}).items():
            _check_connector_kind(f"{field}.connectors.{method}", connector)
    for field, resolution in resolutions.items():
        for method, connector in (resolution or {}).get("connectors", {}).items():
            _check_connector_kind(f"{field}.connectors.{method}", connector)

    def with_names(field: str, owner: Values) -> Values:
        # The study, or a block of it, whose settings by method may be of one's own classes.
        named = {
            key: {resolved_name(f"{field}{key}", m): setting for m, setting in owner[key].items()}
            for key in ("connectors", "train_budgets", "start")
            if isinstance(owner.get(key), dict)
        }
        return {**owner, **named}

    def stage_with_names(field: str, stage: Values) -> Values:
        named = stage.copy()
        if methods := stage.get("methods"):
            named["methods"] = tuple(resolved_name(f"{field}.methods", m) for m in methods)
        if (resolution := stage.get("resolution")) is not None:
            named["resolution"] = with_names(f"{field}.resolution.", resolution)
        return named

    values = stated.copy()
    # Only what is stated: a key that is not there keeps its default, which names ours.
    if "methods" in stated:
        methods = enumerate(stated["methods"])
        values["methods"] = tuple(resolved_name(f"methods.{i}", method) for i, method in methods)
    values = with_names("", values)
    for name, variant in variants.items():
        if "of" in variant:
            of = resolved_name(f"variants.{name}.of", variant["of"])
            values["variants"] = {**values.get("variants", {}), name: {**variant, "of": of}}
    if "stages" in stated:
        values["stages"] = tuple(
            stage_with_names(f"stages.{i}", stage) for i, stage in enumerate(stated["stages"])
        )
    # A resolution has no methods of its own, but settings by method, as the study has.
    if stage2 is not None:
        values["stage2"] = with_names("stage2.", stage2)
    if "backbones" in stated:
        values["backbones"] = {
            name: with_names(f"backbones.{name}.", backbone)
            for name, backbone in stated["backbones"].items()
        }
    if files:
        values["connector_files"] = files
    return values


def _check_connector_kind(field: str, connector: Values) -> None:
    """Refuses a class where `kind` is stated: reading the config would import it."""
    if (kind := connector.get("kind", "vanilla")) not in KINDS:
        raise ValueError(
            f"{field}.kind must be left out, got {kind!r}; a class of your own is named in "
            f"`methods`."
        )


def _merge_transfers(base: Values, changes: Values) -> Values:
    """Returns the study's transfers with Stage 2's changes; images are prepared at its own size."""
    transfers: dict[str, Any] = {}
    for name, transfer in base.items():
        if transfer is not None and (prepare := transfer.get("prepare")):
            rest = {key: value for key, value in prepare.items() if key != "image_px"}
            transfer = {**transfer, "prepare": rest}
        transfers[name] = _merge_values(transfer, changes.get(name, {}))
    return {**transfers, **{name: changes[name] for name in changes if name not in base}}


def _merge_values(base: Any, changes: Any) -> Any:
    """Returns mapping `changes` merged into `base`, recursively; other values replace the base."""
    if not isinstance(base, Mapping) or not isinstance(changes, Mapping):
        return changes
    #   base {a: 1, b: {c: 2, d: 3}}, changes {b: {c: 4}}   ─▶   {a: 1, b: {c: 4, d: 3}}
    merged = {
        **base,
        **{key: _merge_values(base.get(key), value) for key, value in changes.items()},
    }
    if "total_steps" in changes and "epochs" not in changes:
        merged.pop("epochs", None)  # `epochs` would take precedence over `total_steps`.
    return merged


def _with_prepare_px(owner: Values, px: int) -> Values:
    """Returns a source, transfer or Stage 2 with the image size in a `prepare` it states."""
    if (prepare := owner.get("prepare")) is None:
        return owner  # It takes the study's.
    return {**owner, "prepare": {"image_px": px, **prepare}}


def _with_recipes(transfers: Values, px: int, field: tuple[str | int, ...]) -> Values:
    """Returns transfers with the registry's recipes for images of a size, and with that size.

    A zero-shot benchmark takes its parent's recipe, with whose checkpoints it is scored.

    Args:
      transfers: benchmark -> what the config states.
      px: side of the images [pixels].
      field: config key of `transfers`, for errors.
    """
    return {
        name: None
        if transfer is None  # Stage 2 leaves the benchmark out.
        else _with_prepare_px(_with_recipe(name, transfer, transfers, px, field), px)
        for name, transfer in transfers.items()
    }


def _with_recipe(
    name: str, transfer: Values, transfers: Values, px: int, field: tuple[str | int, ...]
) -> Values:
    if name not in BENCHMARKS and not transfer.get("reader"):
        return transfer  # There is no such benchmark, which `check_transfer` reports.
    benchmark = BENCHMARKS.get(name) or user_benchmark(name)
    train = transfer.get("train") or {}
    recipe = recipe_of(BENCHMARKS.get(trained_on(name), benchmark), px)
    # Two recipes for one training: the parent's counts, so a different one here would be ignored.
    if train and transfers.get(benchmark.parent) is not None and not _is_recipe(train, recipe):
        message = (
            f"{name}.train: {name} is scored with the checkpoints of {benchmark.parent}; state its "
            f"recipe under {benchmark.parent}.train."
        )
        fault = PydanticCustomError("value_error", "Value error, {message}", {"message": message})
        error = InitErrorDetails(type=fault, loc=field, input=train)
        raise ValidationError.from_exception_data("StudyConfig", [error])
    if "total_steps" in train:
        recipe.pop("epochs", None)  # It would take precedence over the user's `total_steps`.
    filled = {**transfer, "train": {**recipe, **train}}
    # What has neither a training split nor a parent can only be scored as the stages end.
    if not (benchmark.parent or benchmark.final_split):
        filled = {"zero_shot": True, **filled}
    if benchmark.parent and benchmark.text_len != BENCHMARKS[benchmark.parent].text_len:
        # Its prompts are of another length than those that its checkpoints were trained on.
        filled = {"eval_text_len": benchmark.text_len, **filled}
    return filled


def _is_recipe(train: Mapping[str, Any], recipe: Mapping[str, Any]) -> bool:
    """Whether the values are a whole recipe as it was filled in: a run's record has these."""
    try:
        return config_adapter(TrainConfig).validate_python(train) == TrainConfig(**recipe)
    except ValidationError:
        return False
