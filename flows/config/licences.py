"""Licences that a study's config states, or that lie beside the data that it names."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator

from infra.errors import ConfigError
from infra.store.raw_path import raw_path
from pipelines.fetch.fetch import read_licence
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.licence import NO_LICENCE, Licence


def _licence_of_text(value: Any) -> Any:
    return {"licence": value} if isinstance(value, str) else value


StatedLicence = Annotated[Licence, BeforeValidator(_licence_of_text)]
"""A licence, which a config may state as a text alone."""


def fetched_licence(data_root: str | None, folder: str) -> Licence:
    """Returns the licence that came with fetched data; nothing stated where there is none.

    Args:
      data_root: folder or gs://bucket/prefix of the raw data; None where they are drawn.
      folder: a source's folder below it.
    """
    return NO_LICENCE if data_root is None else read_licence(raw_path(data_root) / folder)


def check_allowed(config: LicencesConfig | None, sources: Iterable[tuple[str, Licence]]) -> None:
    """Refuses a list of licences that probably misspells one that a source states.

    Args:
      config: the allowed licences; None allows all.
      sources: name and licence of each source that is learned from.

    Raises:
      ConfigError: naming the licence, and the nearest one.
    """
    if config is None:
        return
    stated = {licence.licence: name for name, licence in sources if licence.licence}
    try:
        config.check_spelling(stated)
    except ValueError as error:
        raise ConfigError(str(error)) from None
