"""Licences that a study's config states, or that lie beside the data that it names."""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BeforeValidator

from infra.errors import ConfigError
from infra.store.raw_path import raw_path
from pipelines.fetch.fetch import read_licence
from pipelines.prepare.licences import LicencesConfig
from pipelines.records.licence import Licence


def _licence_of_text(value: Any) -> Any:
    return {"licence": value} if isinstance(value, str) else value


StatedLicence = Annotated[Licence, BeforeValidator(_licence_of_text)]
"""A licence, which a config may state as a text alone."""


def source_licence(stated: Licence, data_root: str | None, folder: str) -> Licence:
    """Returns the licence of a source: the config's, or that which came with fetched data.

    Args:
      stated: the licence in the config.
      data_root: folder or gs://bucket/prefix of the raw data; None where they are drawn.
      folder: the source's folder below it.
    """
    if stated.is_stated or data_root is None:
        return stated
    return read_licence(raw_path(data_root) / folder)


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
