"""`parcel data check`: finds the data that a person names, and returns what they hold as text."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import pydantic

from flows.config.licences import fetched_licence
from flows.config.references import corpus_reference
from flows.config.validation import config_adapter, first_problem
from flows.lookup.runs import find_dataset
from flows.report.data_tables import benchmark_rows_text, corpus_check_text, holdings_text
from infra.errors import ConfigError, one_line_message
from infra.yaml_text import YamlError, load_yaml
from pipelines.prepare.check import check_corpus
from pipelines.prepare.config import PrepareConfig
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import count_holdings
from pipelines.records.licence import Licence
from pipelines.records.nearest import with_nearest
from pipelines.records.tf_check import check_with_tf_data
from pipelines.sources.check import check_benchmarks
from pipelines.sources.reading.corpus import parse_features
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
    with_tf_data: bool = True,
    on_progress: Callable[[str], None] = lambda text: None,
    store: str,
    as_json: bool,
) -> tuple[str, bool]:
    """Returns what a dataset or a corpus holds, as text, and whether it can be read or prepared.

    Args:
      what: a dataset's folder or artifact; with `source`, a data root.
      source: the corpus' layout, or a reader function of the user's own; None for a dataset.
      split: the split of the corpus to read.
      path: the corpus' folder below the data root; "" takes the usual one.
      features: names of features in the corpus' records, as "image=image/encoded" each.
      settings: settings with which the corpus will be prepared, as "max_reject_rate=0.1" each.
      licence: licence of the corpus, for records that state none; "" takes what `data fetch` noted.
      allow: licences that a study will allow; empty allows all.
      open_all: whether all pictures and clips of the corpus are opened, rather than a sample; of a
        dataset, whether all shards are read with `tf.data`.
      with_tf_data: whether shards of a dataset are read with `tf.data`, too.
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
    if source is None:
        return _check_dataset(
            what, read_all=open_all, with_tf_data=with_tf_data, store=store, as_json=as_json
        )
    try:
        reader = corpus_reference("--source", source)
        holdings = check_corpus(
            what,
            reader,
            split,
            path=path,
            features=parse_features(features),
            config=_prepare_config(settings),
            licence=Licence(licence=licence)
            if licence
            else fetched_licence(what, path or source_spec(reader).folder),
            licences=LicencesConfig(allow=tuple(allow)) if allow else None,
            open_all=open_all,
            on_progress=on_progress,
        )
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    text = _json_text(dataclasses.asdict(holdings)) if as_json else corpus_check_text(holdings)
    return text, not holdings.failure


def _check_dataset(
    name: str, *, read_all: bool, with_tf_data: bool, store: str, as_json: bool
) -> tuple[str, bool]:
    try:
        place = find_dataset(name, store)
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    # A dataset that is there and cannot be read is no wrong request, but what a check is for.
    try:
        dataset = Dataset(place)
        holdings = count_holdings(dataset)
        read_back = check_with_tf_data(dataset, read_all=read_all) if with_tf_data else None
    except (ValueError, OSError) as error:
        failure = one_line_message(error)
        return _json_text({"failure": failure}) if as_json else f"{failure}\n", False
    is_readable = read_back is None or not read_back.failure
    if as_json:
        tf_data = read_back and dataclasses.asdict(read_back)
        return _json_text({**dataclasses.asdict(holdings), "tf_data": tf_data}), is_readable
    return holdings_text(holdings) + (f"{read_back.text}\n" if read_back else ""), is_readable


def _json_text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


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
        try:
            values[field] = load_yaml(value)
        except YamlError as error:
            raise ConfigError(f"--prepare {field}: {error}") from None
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

    A data root that has the files of none is no success, either.

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
    is_complete &= data_root is None or any(row.all_present for row in rows)
    if not as_json:
        return benchmark_rows_text(rows, looked=data_root is not None), is_complete
    entries = [
        {**dataclasses.asdict(row), "found": row.all_present, "as_published": row.as_published}
        for row in rows
    ]
    return _json_text(entries), is_complete
