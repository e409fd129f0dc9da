"""The key that a store's server encrypts blocks with, such as the addresses of alerts.

It lies in a folder of its user's settings: whoever has a copy of the store, or of the folder of
the server's database, does not have the key. Prefect by itself would draw one and keep it in the
database, beside what it encrypts. Only a user without a home has it there, and can register no
alerts.
"""

import contextlib
import fcntl
import functools
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from infra.errors import ConfigError
from infra.file_locks import lock_file, take_name
from infra.prefect.private import close_to_others, make_private, open_private
from infra.user_folders import user_folder

VARIABLE = "PREFECT_SERVER_ENCRYPTION_KEY"
"""Variable that tells a Prefect server the key."""

_SETTINGS = ("XDG_CONFIG_HOME", ".config")
"""Where a user's settings are: the variable, and the usual folder below their home."""

_IN_DATABASE = "ENCRYPTION_KEY"
"""Row of the database's configuration in which a server without the variable keeps its key."""


def key_file() -> Path:
    """Returns the path of the key's file: that of `PARCEL_KEY`, or else of the user's settings.

    A user without a home has it in the private folder of the store's server.

    Raises:
      ConfigError: if they have no such folder either.
    """
    if named := os.environ.get("PARCEL_KEY"):
        return Path(named).expanduser()
    if settings := user_folder(*_SETTINGS):
        return settings / "key"
    if server := os.environ.get("PREFECT_HOME"):
        return Path(server) / "key"
    raise ConfigError("PARCEL_KEY must name a file: HOME is no folder that you may write to.")


def check_key_stays_apart() -> None:
    """Raises a `ConfigError` if the key would lie beside what it encrypts, as without a home."""
    if not (os.environ.get(VARIABLE) or os.environ.get("PARCEL_KEY") or user_folder(*_SETTINGS)):
        raise ConfigError(
            "--alert needs PARCEL_KEY, a file outside of the store: its address is encrypted with "
            "the key in it, and HOME, where that lies by default, is no folder that you may write "
            "to."
        )


def read_or_draw_key() -> str:
    """Returns the key of this user's servers, drawn when it is first needed.

    Raises:
      ConfigError: if its variable or file holds no key, or the file cannot be read or written.
    """
    if given := os.environ.get(VARIABLE):
        try:
            Fernet(given.encode())
        except ValueError:
            raise ConfigError(
                f"{VARIABLE} must be a key of Fernet, 32 bytes in base64, got {len(given)} "
                f"characters that are none; without it, the key of your own servers counts."
            ) from None
        return given
    path = key_file()
    try:
        if not path.exists():
            _draw_encryption_key(path)
        if others := path.stat().st_mode & 0o077:
            close_to_others(path)
            print(
                f"parcel: {path} was open to others (mode {0o600 | others:o}); it is yours alone "
                f"now. Who has read it can decrypt alerts' addresses: delete it, give them again.",
                file=sys.stderr,
            )
        key = path.read_text().strip()
        Fernet(key.encode())
    except OSError as error:
        raise ConfigError(
            f"PARCEL_KEY must be a file of yours that can be read, or made, got {path}: "
            f"{error.strerror}. The store's server encrypts alerts' addresses with the key in it."
        ) from None
    except ValueError:
        raise ConfigError(
            f"PARCEL_KEY must be a file with a key of Fernet, 32 bytes in base64, got {path}: "
            f"restore it, or delete it and give alerts' addresses again."
        ) from None
    return key


def _draw_encryption_key(path: Path) -> None:
    if not path.parent.exists():
        make_private(path.parent)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with open_private(partial, "w") as file:
        file.write(f"{Fernet.generate_key().decode()}\n")
    try:
        take_name(partial, path, functools.partial(_hold_key_lock, path))
    except FileExistsError:
        pass  # The key that another server drew stays.
    finally:
        partial.unlink(missing_ok=True)
    if not (os.environ.get("PARCEL_KEY") or user_folder(*_SETTINGS)):
        print(
            f"parcel: HOME is no folder that you may write to: the key of the store's server is "
            f"kept in {path}, and alerts need one elsewhere, PARCEL_KEY.",
            file=sys.stderr,
        )


@contextlib.contextmanager
def _hold_key_lock(path: Path) -> Iterator[None]:
    """Holds the lock of those who draw a key there; its file stays."""
    with open_private(path.with_name(f"{path.name}.lock"), "a") as lock:
        lock_file(lock, fcntl.LOCK_EX)
        yield


async def take_key_out_of_database() -> None:
    """Encrypts blocks anew whose key a server's database holds, and deletes that key there.

    Databases of earlier versions hold it. Blocks that neither key decrypts stay as they are.
    """
    import sqlalchemy
    from prefect.server.database import provide_database_interface
    from prefect.server.models.configuration import delete_configuration, read_configuration

    own = Fernet(os.environ[VARIABLE].encode())
    db = provide_database_interface()
    is_sqlite = (await db.engine()).dialect.name == "sqlite"
    async with db.session_context(begin_transaction=True) as session:
        if is_sqlite:  # Else the key's bytes would stay in the file, in space that counts as free.
            await session.execute(sqlalchemy.text("PRAGMA secure_delete = ON"))
        row = await read_configuration(session, _IN_DATABASE)
        earlier = [Fernet(row.value["fernet_key"].encode())] if row else []
        keys, unknown = MultiFernet([own, *earlier]), []
        for block in await session.scalars(sqlalchemy.select(db.BlockDocument)):
            try:
                if row:
                    block.data = keys.rotate(block.data.encode()).decode()
                else:
                    keys.decrypt(block.data.encode())
            except InvalidToken:
                unknown.append(f"{block.name} ({block.id})")
        if row:
            await delete_configuration(session, _IN_DATABASE)
    if row and is_sqlite:
        engine = await db.engine()
        async with engine.connect() as connection:  # The log of writes has the old pages, too.
            await connection.execute(sqlalchemy.text("PRAGMA wal_checkpoint(TRUNCATE)"))
    if unknown:
        print(
            f"blocks that were encrypted with another key than that of {key_file()}: "
            f"{', '.join(unknown)}",
            file=sys.stderr,
        )
