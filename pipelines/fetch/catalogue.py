"""The catalogue of `parcel data fetch`: addresses, digests, licences, and what is got by hand."""

import dataclasses
import re
from pathlib import Path, PurePosixPath
from typing import Annotated
from urllib.parse import unquote, urlsplit

from pydantic import Field, TypeAdapter, ValidationError

from infra.download import ALGORITHMS
from infra.errors import ConfigError
from infra.yaml_text import YamlError, load_yaml
from pipelines.records.licence import NO_LICENCE, Licence

CATALOGUE = Path(__file__).parent / "catalogue.yaml"
HUB_NAME = r"\w[\w.-]*/\w[\w.-]*(@\w[\w./-]*)?"
"""Name of a repository of the Hub, with or without a revision [regular expression]."""

_ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """One file of a data set or a model.

    Attributes:
      address: its address at the publisher's [URL].
      digest: "sha256:…", "sha1:…", "md5:…" or "git-sha1:…", as its publisher or its users state
        it; "" where none is known, so that the first download's digest is only noted.
      size: its published size; None if unknown [bytes].
      path: its name below the data set's folder; "" takes the address's last part.
      unpack: folder below the data set's own into which it is unpacked; None keeps it as it is.
    """

    address: Annotated[str, Field(pattern=r"^https?://")]
    digest: Annotated[str, Field(pattern=rf"^(({'|'.join(ALGORITHMS)}):[0-9a-f]+)?$")] = ""
    size: int | None = None
    path: str = ""
    unpack: str | None = None

    def __post_init__(self) -> None:
        for field in (self.path, self.unpack or ""):
            if PurePosixPath(field).is_absolute() or ".." in PurePosixPath(field).parts:
                raise ValueError(f"path and unpack must lie in the folder, got {field!r}.")
        if self.name in ("", ".."):
            raise ValueError(
                f"path must be stated where the address ends without a name, got {self.address}."
            )
        if self.unpack is not None and not self.name.endswith(_ARCHIVES):
            raise ValueError(f"{self.name} cannot be unpacked: it is no {', '.join(_ARCHIVES)}.")

    @property
    def name(self) -> str:
        """The file's path below the data set's folder."""
        return self.path or PurePosixPath(unquote(urlsplit(self.address).path)).name


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """One benchmark, one corpus, or the weights of one model.

    Attributes:
      licence: licence of its annotations and pictures: an SPDX identifier, or a few words; "" if
        its publisher states none, or only on the page.
      page: the publisher's page that describes it [URL].
      folder: its folder below the data root, where its reader looks for it.
      files: the files to fetch.
      also: names of other data sets that it needs, such as the one with its pictures.
      by_hand: what must be got by hand, and how; "" for nothing.
      terms: terms that one agrees to by fetching it; "" where there is only the licence.
      holder: whose work it is; "" where the catalogue does not know.
      licence_page: where its licence is published; "" where the page says it [URL].
      hub: of weights, the Hub's repository, as "ORG/NAME" or "ORG/NAME@REVISION", which states
        their files; "" for data.
      gated: whether the Hub gives them only to accounts that asked their publisher.
    """

    licence: str
    page: str
    folder: str
    files: tuple[RemoteFile, ...] = ()
    also: tuple[str, ...] = ()
    by_hand: str = ""
    terms: str = ""
    holder: str = ""
    licence_page: str = ""
    hub: Annotated[str, Field(pattern=rf"^({HUB_NAME})?$")] = ""
    gated: bool = False

    @property
    def stated_licence(self) -> Licence:
        """Its licence, as records state it; nothing where the publisher states none."""
        if not self.licence:
            return NO_LICENCE
        address = self.licence_page or self.page
        return Licence(licence=self.licence, holder=self.holder, address=address)

    @property
    def size(self) -> int | None:
        """Total size of its files; None if the size of any is unknown [bytes]."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size or 0 for size in sizes)


def load_catalogue(path: Path = CATALOGUE) -> dict[str, DataSet]:
    """Returns the data sets of a catalogue by name.

    Raises:
      ConfigError: if the file is not a catalogue; the error names the field.
    """
    try:
        raw = load_yaml(path.read_text(encoding="utf-8"))
        catalogue = TypeAdapter(dict[str, DataSet]).validate_python(raw)
    except (OSError, YamlError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        # "chartqa.files.0.size": where in the file the first error is.
        location = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {location}: {first['msg']}") from None
    for name, data_set in catalogue.items():
        if unknown := sorted(set(data_set.also) - set(catalogue)):
            raise ConfigError(f"{path}: {name}.also: no data set {', '.join(unknown)}")
    return catalogue


def select_data_sets(catalogue: dict[str, DataSet], names: tuple[str, ...]) -> dict[str, DataSet]:
    """Returns the named data sets and those that they need.

    A name with a slash is that of a repository of the Hub.

    Raises:
      ConfigError: if another name is not in the catalogue; the error lists the names that are.
    """
    selected: dict[str, DataSet] = {}
    # What a data set needs may need others, so they are appended to what is waiting.
    pending = list(names)
    while pending:
        name = pending.pop(0)
        if name not in catalogue and not re.fullmatch(HUB_NAME, name, re.ASCII):
            raise ConfigError(
                f"NAME must be one of {', '.join(sorted(catalogue))}, got {name!r}; parcel data "
                f"fetch --list describes them. Other weights are named as on the Hub, ORG/NAME."
            )
        if name not in selected:
            selected[name] = catalogue.get(name) or _unlisted_weights(name)
            pending += selected[name].also
    return selected


def _unlisted_weights(name: str) -> DataSet:
    """Returns weights of which only the repository's name is known; the Hub states the rest."""
    repository, _, _ = name.partition("@")
    page = f"https://huggingface.co/{repository}"
    return DataSet(licence="", page=page, folder=repository.rpartition("/")[2], hub=name)
