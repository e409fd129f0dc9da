"""Options that several commands have."""

from typing import Annotated

import typer

DEFAULT_STORE = ".parcel"

StoreOption = Annotated[
    str,
    typer.Option("--store", envvar="PARCEL_STORE", metavar="URI", help="Folder of the store."),
]
