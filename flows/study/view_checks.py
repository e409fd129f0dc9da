"""Checks of a study's views: what a config states must fit together, and be known here."""

from flows.config.benchmark import check_splits, check_transfer
from flows.config.references import corpus_reference
from flows.config.watched import WatchedConfig
from flows.study.settings import REFERENCE, Method, StudySettings
from flows.study.split_checks import check_held_out, check_screened, check_watched
from flows.study.view import StudyView
from model.connector.budgets import supported_budgets
from model.connector.registry import KINDS
from model.connector.routing import halves
from model.train.config import TrainConfig
from pipelines.prepare.config import PrepareConfig
from pipelines.records.codes import EXTRA_TOKENS
from pipelines.sources.registry import SOURCES


def check_names(settings: StudySettings) -> None:
    """Checks that readers, splits and benchmarks exist, and that lists repeat nothing.

    All other checks look these up by name.

    Raises:
      ValueError: naming the field, the value and what is accepted.
    """
    for field in ("methods", "budgets"):
        values = getattr(settings, field)
        if len(set(values)) != len(values):
            raise ValueError(f"{field} must not repeat a value, got {list(values)}.")
    for i, source in enumerate(settings.sources):
        reader = corpus_reference(f"sources.{i}.reader", source.reader)
        if source.reader not in SOURCES and not source.path:
            raise ValueError(
                f"sources.{i}.path must be given, the folder below data_root that "
                f"{source.reader} reads."
            )
        check_splits(f"sources.{i}.split", reader, source.split)
    for name, transfer in settings.transfers.items():
        check_transfer(name, transfer)


def check_all_budgets_served(view: StudyView) -> None:
    """Checks that each budget, as the study states them, is served by a method.

    Budgets that are fitted to another number of patches need not be. A study of vanilla alone, say
    by `methods=[vanilla]`, has those of its base; a line says what stays empty.

    Raises:
      ValueError: naming the budgets, and those that the methods serve.
    """
    served = {method: supported_budgets(view.model_of(method)) for method in view.methods}
    is_elastic = any(len(budgets) > 1 for budgets in served.values())
    if is_elastic and (unserved := view.unserved_budgets):
        texts = (f"{method} {_budgets_text(view, method)}" for method in view.methods)
        raise ValueError(
            f"budgets: no method of the study serves {unserved}; they serve {'; '.join(texts)}. "
            f"Leave them out, or add a method that does."
        )


def check_view(view: StudyView) -> None:
    """Checks a view as a whole, but for the order of its stages.

    Raises:
      ValueError: naming the field, the value and what is accepted.
    """
    check_names(view)
    check_held_out(view.sources, view.transfers)
    check_screened(view.hygiene, view.sources, view.transfers)
    if view.watch is not None:
        _check_watch(view, view.watch)
    _check_image_px(view)
    # A tokenizer of the user's own is opened later; one trained here has a known size.
    vocabulary = view.tokenizer.vocab_size + len(EXTRA_TOKENS)
    if view.tokenizer.path is None and view.model.text.vocab_size != vocabulary:
        raise ValueError(
            f"model.text.vocab_size must be tokenizer.vocab_size + {len(EXTRA_TOKENS)} = "
            f"{vocabulary}, got {view.model.text.vocab_size}."
        )
    if not view.model.template.reads_question:
        raise ValueError(
            f"model.prompt must be a template with questions, got {view.model.prompt}, which "
            f"is for a stage's train.prompt."
        )
    # Budgets of queries are even, and those of pooled grids, all tokens among them, may be odd.
    full = view.model.vision.num_patches
    squares = {side * side for side in halves(view.model.vision.grid)}
    if wrong := [b for b in view.budgets if b not in squares and (b > full or b % 2)]:
        raise ValueError(
            f"budgets: no method serves {wrong}. Accepted: even ones from 2 to {full}."
        )
    _check_variants(view)
    for method in view.methods:
        _check_budgets(view, method)
    for method, budgets in view.train_budgets.items():
        _check_train_budgets(view, f"train_budgets.{method}", method, budgets)
    for name, variant in view.variants.items():
        if variant.train_budgets is not None:
            field = f"variants.{name}.train_budgets"
            _check_train_budgets(view, field, name, variant.train_budgets)
    _check_stages(view)
    _check_process_batches(view)


def _check_image_px(view: StudyView) -> None:
    # Images are prepared at the size that the model reads: none is resized twice.
    stated: dict[str, PrepareConfig | None] = {"prepare": view.prepare}
    stated |= {f"sources.{i}.prepare": source.prepare for i, source in enumerate(view.sources)}
    stated |= {f"transfers.{name}.prepare": entry.prepare for name, entry in view.transfers.items()}
    image_px = view.model.vision.image_px
    for field, config in stated.items():
        if config is not None and config.image_px != image_px:
            raise ValueError(
                f"{field}.image_px must be model.vision.image_px={image_px}, got "
                f"{config.image_px}; leave it out to use the model's size."
            )


def _check_process_batches(view: StudyView) -> None:
    # Each training with the part of `compute` that says how many processes share its batches.
    tunings = {f"transfers.{name}.train": train for name, train in view.fine_tunings.items()}
    trainings: dict[str, tuple[str, TrainConfig | None]] = {
        "stage1": ("stage", view.stage1),
        "intermediary": ("cell", view.intermediary),
        "stage2.train": ("cell", view.stage2 and view.stage2.train),
        **{f"stages.{i}.train": ("cell", stage.train) for i, stage in enumerate(view.stages)},
        **{name: ("transfer", train) for name, train in tunings.items()},
    }
    compute = view.compute
    for name, (what, train) in trainings.items():
        processes: int = getattr(compute, f"{what}_processes")
        if train is None or processes == 1:
            continue
        field = f"processes_per_{'stage' if what == 'stage' else 'cell'}"
        known = getattr(compute, field) is not None
        number = f"{processes}" if known else f"{processes}, the hosts of {compute.topology}"
        if train.batch_size % processes:
            raise ValueError(
                f"compute.{field} must divide {name}.batch_size={train.batch_size}, got {number}."
            )
        # The probe runs inside a stage, in the same processes, with a batch of its own.
        probe = view.watch and view.watch.probe
        if probe and name not in tunings and probe.benchmark in view.fine_tunings:
            recipe = view.fine_tunings[probe.benchmark]
            size = probe.batch_size or recipe.batch_size
            if size % processes:
                raise ValueError(
                    f"compute.{field} must divide the batch of watch.probe, {size}, got "
                    f"{number}; set watch.probe.batch_size."
                )


def _check_stages(view: StudyView) -> None:
    if view.stage1 is None and view.start is None:
        raise ValueError("stage1 or start must be given: training needs one of them to begin with.")
    # One start per method leaves nothing for a shared Stage 1 to begin with.
    if isinstance(view.start, dict):
        if view.stage1 is not None:
            raise ValueError(
                f"start must be one checkpoint where stage1 is given, got one for each of "
                f"{', '.join(view.start)}; leave out stage1 (null), or start from a vanilla "
                f"checkpoint."
            )
        # Variants start from the checkpoint of the connector that they are variants of.
        needed = dict.fromkeys(map(view.connector_of, view.methods))
        if missing := [method for method in needed if method not in view.start]:
            raise ValueError(
                f"start must have a checkpoint for every method, got none for {', '.join(missing)}."
            )
    if view.zero_shot and view.num_seeds > 1:
        raise ValueError(
            f"num_seeds must be 1 where transfers.{view.zero_shot[0]} is zero_shot, got "
            f"{view.num_seeds}: such scores differ by pretraining alone (num_pretrain_seeds). "
            f"Benchmarks to fine-tune on with several seeds are a study of their own, which "
            f"reuses the stages."
        )
    _check_zero_shot_stages(view)
    is_trained = view.stage1 is not None or view.intermediary is not None or view.stages
    if not is_trained and view.num_pretrain_seeds > 1:
        raise ValueError(
            f"num_pretrain_seeds must be 1 without stage1 and intermediary, got "
            f"{view.num_pretrain_seeds}: all of them would begin with the same parameters."
        )


def _check_zero_shot_stages(view: StudyView) -> None:
    # A start has its own connector, or none: only vanilla is what it says it is.
    stages = [stage for stage in view.stages if stage.resolution is None]
    if not view.zero_shot or view.stage1 or view.intermediary or view.is_higher:
        return
    trained = {m for stage in stages for m in stage.methods or view.methods}
    for method in view.methods:
        if method not in trained and view.connector_of(method) != REFERENCE:
            raise ValueError(
                f"transfers.{view.zero_shot[0]}.zero_shot must come with a stage that trains "
                f"{method}, got none: only {REFERENCE} can be scored as it starts."
            )


def _check_watch(view: StudyView, watch: WatchedConfig) -> None:
    for i, source in enumerate(watch.sources):
        reader = corpus_reference(f"watch.sources.{i}.reader", source.reader)
        check_splits(f"watch.sources.{i}.split", reader, source.split)
    check_watched(view.sources, watch.sources)
    if watch.probe and watch.probe.benchmark not in view.fine_tunings and not view.is_higher:
        raise ValueError(
            f"watch.probe.benchmark must be a transfer of the study, "
            f"{', '.join(view.fine_tunings) or 'of which there is none'}, got "
            f"{watch.probe.benchmark!r}."
        )


def _check_budgets(view: StudyView, method: Method) -> None:
    if view.budgets_of(method):
        return
    if method == REFERENCE:
        raise ValueError(
            f"budgets must hold {_budgets_text(view, method)}, all tokens, where {REFERENCE} is "
            f"compared, got {list(view.budgets)}."
        )
    raise ValueError(
        f"budgets: {method} serves none of {list(view.budgets)}; it serves "
        f"{_budgets_text(view, method)}. Add one of these, or leave the method out."
    )


def _check_variants(view: StudyView) -> None:
    # A name means one thing: a connector, or a variant of one.
    for name, variant in view.variants.items():
        if name in KINDS:
            raise ValueError(
                f"variants.{name} must have a name that is no connector's, got {name!r}; "
                f"choose another."
            )
        if name in view.train_budgets:
            raise ValueError(
                f"train_budgets must hold methods that are no variants, got {name!r}; state "
                f"its budgets as variants.{name}.train_budgets."
            )
        if variant.of in view.variants:
            raise ValueError(f"variants.{name}.of must be a connector, got {variant.of!r}.")


def _check_train_budgets(
    view: StudyView, field: str, method: Method, budgets: tuple[int, ...]
) -> None:
    served_budgets = supported_budgets(view.model_of(method))
    if not budgets or len(set(budgets)) != len(budgets) or not set(budgets) <= set(served_budgets):
        raise ValueError(
            f"{field} must be distinct budgets that {method} serves, "
            f"{_budgets_text(view, method)}, got {list(budgets)}; without it all of them are "
            f"drawn."
        )


def _budgets_text(view: StudyView, method: Method) -> str:
    served_budgets = supported_budgets(view.model_of(method))
    if len(served_budgets) < 10:
        return ", ".join(str(budget) for budget in served_budgets)
    return f"{served_budgets[0]}…{served_budgets[-1]}, even ones"
