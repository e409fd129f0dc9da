"""Resolves a study into its views: every backbone, at every resolution.

    study                     views                        suffix of names
    backbones: {a, b}    ─▶   a at its own resolution      @a
    stage2: 448 px            a at 448 px                  @448@a
                              b at its own resolution      @b
                              b at 448 px                  @448@b

A view has all settings that hold there, so that whoever reads it asks nothing else: what a backbone
or a resolution states stands in the place of the study's, and the rest is the study's, fitted to
another number of patches.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from flows.config.backbone import AS_STUDY, BackboneConfig
from flows.config.benchmark import TransferConfig, benchmark_of, recipe_of, trained_on
from flows.config.stages import RESERVED, ResolutionConfig, Stage2Config, scale_budget
from flows.config.variant import Variant
from flows.study.settings import Method, StudySettings
from flows.study.view import StudyView
from flows.study.view_checks import check_all_budgets_served, check_view
from model.config import ModelConfig
from model.connector.budgets import supported_budgets
from model.connector.config import ConnectorConfig

_Resolution = TypeVar("_Resolution", Stage2Config, ResolutionConfig)


def resolve_study(
    settings: StudySettings, backbones: Mapping[str, BackboneConfig]
) -> tuple[StudyView, ...]:
    """Returns the view of each backbone at its own resolution, with its higher ones.

    Args:
      settings: the study's settings.
      backbones: name -> backbone; without any, the settings are those of the one that there is.

    Raises:
      ValueError: if the study, or a backbone in it, does not fit together; or two are the same.
    """
    if not backbones:
        view = StudyView(**_study_settings_values(settings))
        check_view(view)
        check_all_budgets_served(view)
        return (_with_higher_resolutions(view),)
    views: dict[str, StudyView] = {}
    for name, backbone in backbones.items():
        try:
            view = _study_of_backbone(settings, name, backbone, is_only=len(backbones) == 1)
            check_view(view)
            views[name] = _with_higher_resolutions(view)
        except ValueError as error:
            raise ValueError(f"backbones.{name}: {error}") from None
    for (first, view), (second, other) in itertools.combinations(views.items(), 2):
        if _study_settings_values(view) == _study_settings_values(other):
            raise ValueError(
                f"backbones must differ, got {first} and {second}, which are the same; leave "
                f"one out, or state what differs."
            )
    return tuple(views.values())


def _study_settings_values(settings: StudySettings) -> dict[str, Any]:
    return {
        field.name: getattr(settings, field.name) for field in dataclasses.fields(StudySettings)
    }


def _with_higher_resolutions(view: StudyView) -> StudyView:
    higher = [("stage2", "stage2", view.stage2)]
    higher += [
        (f"stages.{i}.resolution", stage.name, stage.resolution)
        for i, stage in enumerate(view.stages)
    ]
    places = _stage_places(view)
    views: list[StudyView] = []
    for key, stage, resolution in higher:
        if resolution is not None:
            try:
                views.append(_view_at(view, key, resolution, places[stage][1]))
                check_view(views[-1])
            except ValueError as error:
                raise ValueError(f"{key}: {error}") from None
    return dataclasses.replace(view, higher=tuple(views))


def _stage_places(view: StudyView) -> dict[str, tuple[int, tuple[Method, ...]]]:
    """Returns stage -> its resolution [pixels], and the methods that there are at it.

    Raises:
      ValueError: if a stage continues from none before it, or does not fit that one.
    """
    # A stage continues from one that stands before it, so no two can wait for each other.
    own = {"start": view.start, "stage1": view.stage1, "intermediary": view.intermediary}
    px = view.model.vision.image_px
    if view.stage2 is not None and view.stage2.image_px <= px:
        raise ValueError(
            f"stage2.image_px must be above model.vision.image_px={px}, got {view.stage2.image_px}."
        )
    places = {name: (px, view.methods) for name, value in own.items() if value}
    if view.stage2 is not None:
        places["stage2"] = view.stage2.image_px, view.methods
    # One of the study's own has the resolution and the methods of the stage that it continues
    # from, unless it states others.
    for i, stage in enumerate(view.stages):
        if stage.name in (*RESERVED, *places):
            raise ValueError(
                f"stages.{i}.name must be a name of its own, got {stage.name!r}; other steps "
                f"are called {', '.join(dict.fromkeys((*RESERVED, *places)))}."
            )
        if stage.after not in places:
            raise ValueError(
                f"stages.{i}.after must be a stage that the study has before it, "
                f"{', '.join(places)}, got {stage.after!r}."
            )
        px, methods = places[stage.after]
        if unknown := [m for m in stage.methods or () if m not in methods]:
            raise ValueError(
                f"stages.{i}.methods must be methods of the study at {px} px, "
                f"{', '.join(methods)}, got {unknown[0]!r}."
            )
        if stage.resolution is not None:
            below, taken = px, sorted({other for other, _ in places.values()})
            px, methods = stage.resolution.image_px, stage.methods or methods
            # Steps are named by their resolution, so no two may have the same.
            if px <= below or px in taken:
                raise ValueError(
                    f"stages.{i}.resolution.image_px must be above that of {stage.after}, and "
                    f"none that the study has, {', '.join(map(str, taken))}, got {px}."
                )
        places[stage.name] = px, methods
    return places


def _study_of_backbone(
    config: StudySettings, name: str, backbone: BackboneConfig, *, is_only: bool
) -> StudyView:
    """Returns the view of a backbone at its own resolution, as of a study of it alone.

    Raises:
      ValueError: if it needs its own start or tokenizer, and states none.
    """
    model = backbone.model.model_in(config.model)
    before, after = config.model.vision.num_patches, model.vision.num_patches
    px = model.vision.image_px
    is_own = (model.vision, model.text, model.projector) == (
        config.model.vision, config.model.text, config.model.projector,
    )  # fmt: skip
    start = config.start if backbone.start == AS_STUDY else backbone.start
    if backbone.start == AS_STUDY and start is not None and not is_own:
        raise ValueError(
            f"start must be stated, as the study's, {start}, is a checkpoint of another tower and "
            f"decoder; null starts from random parameters."
        )
    tokenizer = backbone.tokenizer or config.tokenizer
    if backbone.tokenizer is None and tokenizer.path is not None:
        families = model.text.family, config.model.text.family
        if len({*families}) > 1:
            raise ValueError(
                f"tokenizer must be stated for {families[0]}, as the study's, {tokenizer.path}, is "
                f"of {families[1]}."
            )

    connectors = config.connectors
    if before != after:
        connectors = {method: _without_buckets(c) for method, c in connectors.items()}
    small_px, resolved = config.model.vision.image_px, _prepare_fields_at_px(config, px)
    stages = {
        stage: stated
        for stage in ("stage1", "intermediary")
        if (stated := getattr(backbone, stage)) != AS_STUDY
    }
    changed: dict[str, Any] = {
        **resolved,
        **stages,
        "model": model,
        "tokenizer": tokenizer,
        "start": start,
        "connectors": connectors | backbone.connectors,
        "transfers": {
            name: _with_recipe_at(px, name, transfer, small_px)
            for name, transfer in resolved["transfers"].items()
        },
        "budgets": backbone.budgets or _fit_budgets(config.budgets, before, after),
        "train_budgets": config.train_budgets | backbone.train_budgets,
        "stage2": config.stage2 and _fit_resolution(config.stage2, config.model, model),
        "stages": tuple(
            dataclasses.replace(
                stage, resolution=_fit_resolution(stage.resolution, config.model, model)
            )
            if stage.resolution is not None
            else stage
            for stage in config.stages
        ),
    }
    view = StudyView(
        **{**_study_settings_values(config), **changed},
        backbone="" if is_only else name,
        backbone_keys={setting: f"backbones.{name}.{setting}" for setting in backbone.stated},
    )
    if before == after:
        return view
    # A method may serve other budgets on another number of patches. What it serves here is known
    # once all fits together but the training budgets.
    plain = dataclasses.replace(
        view, train_budgets={}, variants=_with_train_budgets(config.variants, lambda budgets: None)
    )
    check_view(plain)

    def served(method: Method, budgets: Sequence[int]) -> tuple[int, ...]:
        supported = supported_budgets(plain.model_of(method))
        return tuple(b for b in _fit_budgets(budgets, before, after) if b in supported)

    return dataclasses.replace(
        view,
        train_budgets={
            method: served(method, budgets)
            for method in config.methods
            if method not in config.variants
            if (budgets := config.train_budgets_of(method))
        }
        | backbone.train_budgets,
        variants={
            method: dataclasses.replace(
                variant,
                train_budgets=variant.train_budgets and served(method, variant.train_budgets),
            )
            for method, variant in config.variants.items()
        },
    )


def _fit_budgets(budgets: Sequence[int], before: int, after: int) -> tuple[int, ...]:
    """Returns budgets on another tower: as many tokens, but for all tokens."""
    #   16 x 16 patches   16  64  256     24 x 24 patches   16  64  576
    return tuple(dict.fromkeys(after if budget == before else budget for budget in budgets))


def _fit_resolution(resolution: _Resolution, study: ModelConfig, model: ModelConfig) -> _Resolution:
    """Returns a higher resolution of the study on another tower, whose patches may differ."""
    before, after = (
        (resolution.image_px // vision.patch_px) ** 2 for vision in (study.vision, model.vision)
    )
    if before == after:
        return resolution
    return dataclasses.replace(
        resolution,
        budgets=resolution.budgets and _fit_budgets(resolution.budgets, before, after),
        train_budgets={
            method: _fit_budgets(budgets, before, after)
            for method, budgets in resolution.train_budgets.items()
        },
        connectors={method: _without_buckets(c) for method, c in resolution.connectors.items()},
    )


def _with_recipe_at(px: int, name: str, transfer: TransferConfig, before_px: int) -> TransferConfig:
    """Returns a transfer in which what the registry's recipe says is of another image side."""
    trained = benchmark_of(trained_on(name), transfer)
    was, now = recipe_of(trained, before_px), recipe_of(trained, px)
    changes = {
        field: now[field]
        for field, value in was.items()
        if now[field] != value and getattr(transfer.train, field) == value
    }
    return dataclasses.replace(transfer, train=dataclasses.replace(transfer.train, **changes))


def _without_buckets(connector: ConnectorConfig) -> ConnectorConfig:
    # Buckets are token counts declared for one number of patches; by default they follow it.
    return dataclasses.replace(connector, buckets=())


def _with_train_budgets(
    variants: Mapping[str, Variant], fit: Callable[[Sequence[int]], tuple[int, ...] | None]
) -> dict[str, Variant]:
    return {
        name: dataclasses.replace(
            variant, train_budgets=variant.train_budgets and fit(variant.train_budgets)
        )
        for name, variant in variants.items()
    }


def _prepare_fields_at_px(config: StudySettings, px: int) -> dict[str, Any]:
    """Returns those fields of a study that prepare images, for images of another side [pixels]."""

    def resized(owner: Any) -> Any:
        if owner.prepare is None:
            return owner
        return dataclasses.replace(owner, prepare=dataclasses.replace(owner.prepare, image_px=px))

    watch = config.watch
    return {
        "prepare": dataclasses.replace(config.prepare, image_px=px),
        "sources": tuple(map(resized, config.sources)),
        "watch": watch and dataclasses.replace(watch, sources=tuple(map(resized, watch.sources))),
        "transfers": {name: resized(entry) for name, entry in config.transfers.items()},
    }


def _view_at(
    view: StudyView, key: str, resolution: ResolutionConfig, methods: tuple[Method, ...]
) -> StudyView:
    px, before = resolution.image_px, view.model.vision.num_patches
    vision = dataclasses.replace(view.model.vision, image_px=px)
    after = vision.num_patches

    def scale(budgets: Sequence[int]) -> tuple[int, ...]:
        return tuple(scale_budget(budget, before, after) for budget in budgets)

    resolved = _prepare_fields_at_px(view, px)
    transfers = resolved["transfers"] if resolution.transfers is None else resolution.transfers
    # Left out means: as in the study, fitted to the larger images; stated means: exactly this.
    #
    #              study, 224 px     Stage 2, 448 px
    #   images     256 features      1024 features
    #   budgets    16  64  256       64  256  1024   (the same shares)
    #   prepare    image_px: 224     image_px: 448
    changed: dict[str, Any] = {
        "model": dataclasses.replace(
            view.model,
            vision=vision,
            connector=_without_buckets(view.model.connector),
            remat=resolution.remat or view.model.remat,
        ),
        "connectors": {m: _without_buckets(c) for m, c in view.connectors.items()}
        | resolution.connectors,
        "prepare": resolution.prepare or resolved["prepare"],
        "sources": resolution.sources or resolved["sources"],
        "watch": resolved["watch"],
        "transfers": {name: entry for name, entry in transfers.items() if entry is not None},
        "budgets": resolution.budgets or scale(view.budgets),
        "train_budgets": {m: scale(budgets) for m, budgets in view.train_budgets.items()}
        | resolution.train_budgets,
        "variants": _with_train_budgets(view.variants, scale),
        "num_seeds": resolution.num_seeds or view.num_seeds,
        "eval_batch_size": resolution.eval_batch_size or view.eval_batch_size,
        "methods": methods,
        "stage2": None,
        "stages": (),
    }
    return dataclasses.replace(view, resolution_key=key, **changed)
