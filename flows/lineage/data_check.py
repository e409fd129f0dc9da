"""`parcel data check`: finds the data that a person names, and returns what they hold as text."""

import dataclasses
import json
from collections.abc import Sequence

from flows.config.references import corpus_reference
from flows.lineage.runs import find_dataset
from flows.report.data_check import benchmark_rows_text, holdings_text
from infra.errors import ConfigError
from pipelines.records.dataset import Dataset
from pipelines.records.holdings import count_holdings
from pipelines.sources.check import check_benchmarks, check_corpus
from pipelines.sources.corpus import parse_features


def check_dataset_or_source(
    what: str | None,
    *,
    source: str | None,
    split: str,
    path: str,
    features: Sequence[str] = (),
    store: str,
    as_json: bool,
) -> str:
    """Returns counts of what a dataset or a corpus holds, as text.

    Args:
      what: a dataset's folder or artifact; with `source`, a data root.
      source: the corpus' layout, or a reader function of the user's own; None for a dataset.
      split: the split of the corpus to read.
      path: the corpus' folder below the data root; "" takes the usual one.
      features: names of features in the corpus' records, as "image=image/encoded" each.
      store: the store that holds artifacts [URI].
      as_json: whether to return a JSON object rather than tables.

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
            holdings = check_corpus(what, reader, split, path=path, features=feature_columns)
        else:
            holdings = count_holdings(Dataset(find_dataset(what, store)))
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    if as_json:
        return json.dumps(dataclasses.asdict(holdings), indent=1, ensure_ascii=False) + "\n"
    return holdings_text(holdings)


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
