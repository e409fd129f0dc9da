"""The key that a store's server encrypts blocks with, such as the addresses of alerts.

It lies in a folder of its user's settings: whoever has a copy of the store, or of the folder of
the server's database, does not have the key. Prefect by itself would draw one and keep it in the
database, beside what it encrypts.
"""

import os
import secrets
import sys
from pathlib import Path

from cryptography.fernet import Fernet, InvalidToken, MultiFernet

from infra.errors import ConfigError
from infra.prefect.private import make_private, open_private

VARIABLE = "PREFECT_SERVER_ENCRYPTION_KEY"
"""Variable that tells a Prefect server the key."""

_IN_DATABASE = "ENCRYPTION_KEY"
"""Row of the database's configuration in which a server without the variable keeps its key."""


def key_file() -> Path:
    """Returns the path of the key's file: that of `PARCEL_KEY`, or else of the user's settings."""
    settings = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Path(os.environ.get("PARCEL_KEY") or settings / "parcel" / "key").expanduser()


def read_or_draw_key() -> str:
    """Returns the key of this user's servers, drawn when it is first needed.

    Raises:
      ConfigError: if its file holds no key, or cannot be read or written.
    """
    if given := os.environ.get(VARIABLE):
        return given
    path = key_file()
    try:
        if not path.exists():
            _draw(path)
        path.chmod(0o600)
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


def _draw(path: Path) -> None:
    if not path.parent.exists():
        make_private(path.parent)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with open_private(partial, "w") as file:
        file.write(f"{Fernet.generate_key().decode()}\n")
    try:
        os.link(partial, path)  # Unlike a rename it keeps the key that another server drew.
    except FileExistsError:
        pass
    finally:
        partial.unlink()


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
