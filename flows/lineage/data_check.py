"""`parcel data check`: finds the data that a person names, and returns what they hold as text."""

import dataclasses
import json
from collections.abc import Callable, Sequence

import pydantic
import yaml

from flows.config.licences import fetched_licence
from flows.config.references import corpus_reference
from flows.config.validation import config_adapter, first_problem
from flows.lineage.runs import find_dataset
from flows.report.data_check import benchmark_rows_text, corpus_check_text, holdings_text
from infra.errors import ConfigError
from pipelines.prepare.check import CorpusCheck, check_corpus
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import count_holdings
from pipelines.records.licence import Licence
from pipelines.records.nearest import with_nearest
from pipelines.sources.check import check_benchmarks
from pipelines.sources.corpus import parse_features
from pipelines.sources.registry import source_spec


def check_dataset_or_source(
    what: str | None,
    *,
    source: str | None,
    split: str,
    path: str,
    features: Sequence[str] = (),
    settings: Sequence[str] = (),
    licence: str = "",
    allow: Sequence[str] = (),
    open_all: bool = False,
    on_progress: Callable[[str], None] = lambda text: None,
    store: str,
    as_json: bool,
) -> tuple[str, bool]:
    """Returns what a dataset or a corpus holds, as text, and whether preparing would accept it.

    Args:
      what: a dataset's folder or artifact; with `source`, a data root.
      source: the corpus' layout, or a reader function of the user's own; None for a dataset.
      split: the split of the corpus to read.
      path: the corpus' folder below the data root; "" takes the usual one.
      features: names of features in the corpus' records, as "image=image/encoded" each.
      settings: settings with which the corpus will be prepared, as "max_reject_rate=0.1" each.
      licence: licence of the corpus, for records that state none; "" takes what `data fetch` noted.
      allow: licences that a study will allow; empty allows all.
      open_all: whether all pictures and clips of the corpus are opened, rather than a sample.
      on_progress: called with what was done so far, often.
      store: the store that holds artifacts [URI].
      as_json: whether to return a JSON object rather than lines.

    Raises:
      ConfigError: if there is no such dataset or corpus, or it cannot be read.
    """
    if what is None:
        raise ConfigError(
            "data check needs what to check: a prepared dataset, a data root with --source, or "
            "--benchmarks."
        )
    try:
        # Raw data with `source`, else a prepared dataset: both end as the same counts.
        if source is not None:
            reader = corpus_reference("--source", source)
            feature_columns = parse_features(features)
            holdings = check_corpus(
                what,
                reader,
                split,
                path=path,
                features=feature_columns,
                config=_prepare_config(settings),
                licence=Licence(licence=licence)
                if licence
                else fetched_licence(what, path or source_spec(reader).folder),
                licences=LicencesConfig(allow=tuple(allow)) if allow else None,
                open_all=open_all,
                on_progress=on_progress,
            )
        else:
            holdings = count_holdings(Dataset(find_dataset(what, store)))
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    is_accepted = not (isinstance(holdings, CorpusCheck) and holdings.failure)
    if as_json:
        text = json.dumps(dataclasses.asdict(holdings), indent=1, ensure_ascii=False) + "\n"
    elif isinstance(holdings, CorpusCheck):
        text = corpus_check_text(holdings)
    else:
        text = holdings_text(holdings)
    return text, is_accepted


def _prepare_config(settings: Sequence[str]) -> PrepareConfig:
    """Returns the config of words such as "max_reject_rate=0.1"; a study's `prepare.` may precede.

    Raises:
      ConfigError: if a word is no field and its value, naming it.
    """
    values = {}
    for word in settings:
        field, equals, value = word.removeprefix("prepare.").partition("=")
        if not equals:
            raise ConfigError(f"--prepare must look like max_reject_rate=0.1, got {word!r}.")
        values[field] = yaml.safe_load(value)
    accepted = [field.name for field in dataclasses.fields(PrepareConfig)]
    if unknown := [name for name in values if name not in accepted]:
        raise ConfigError(
            f"--prepare: no such key: {with_nearest(unknown, accepted)}; accepted: "
            f"{', '.join(accepted)}."
        )
    try:
        return config_adapter(PrepareConfig).validate_python(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"--prepare {first_problem(error, PrepareConfig)}") from None


def check_benchmark_rows(
    data_root: str | None, *, training: bool, as_json: bool
) -> tuple[str, bool]:
    """Returns the benchmarks' rows as text, and whether every row with files could be read.

    Args:
      data_root: folder with a folder per benchmark, or gs://bucket/prefix; None only lists the
        files that the benchmarks need.
      training: whether training splits are checked, too.
      as_json: whether to return a JSON list rather than a table.

    Raises:
      ConfigError: if there is no such folder.
    """
    try:
        rows = list(check_benchmarks(data_root, training=training))
    except FileNotFoundError as error:
        raise ConfigError(str(error)) from None
    is_complete = not any(row.problem for row in rows)
    if not as_json:
        return benchmark_rows_text(rows, looked=data_root is not None), is_complete
    entries = [
        {**dataclasses.asdict(row), "found": row.all_present, "as_published": row.as_published}
        for row in rows
    ]
    return json.dumps(entries, indent=1) + "\n", is_complete
