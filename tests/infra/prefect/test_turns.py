"""Transactions on the server's SQLite database take turns, those that read first as well."""

import asyncio
from pathlib import Path

import pytest


async def count_up(database: Path, times: int) -> int:
    """Returns a counter after `times` concurrent transactions that each read and raise it."""
    import sqlalchemy as sa
    from prefect.server.database.configurations import AioSqliteConfiguration

    config = AioSqliteConfiguration(connection_url=f"sqlite+aiosqlite:///{database}")
    engine = await config.engine()

    async def one_more() -> None:
        session = await config.session(engine)
        async with session, config.begin_transaction(session):
            (number,) = (await session.execute(sa.text("select number from counts"))).one()
            await asyncio.sleep(0.02)  # Another one begins meanwhile.
            await session.execute(sa.text(f"update counts set number = {number + 1}"))

    try:
        async with engine.begin() as connection:
            await connection.execute(sa.text("create table counts (number integer)"))
            await connection.execute(sa.text("insert into counts values (0)"))
        await asyncio.gather(*(one_more() for _ in range(times)))
        async with engine.connect() as connection:
            return (await connection.execute(sa.text("select number from counts"))).scalar_one()
    finally:
        await engine.dispose()


@pytest.mark.slow
def test_transactions_that_read_first_all_come_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from prefect.server.database.configurations import AioSqliteConfiguration
    from sqlalchemy.exc import OperationalError

    from infra.prefect.app import begin_immediately

    with pytest.raises(OperationalError, match="database is locked"):  # Prefect's own way.
        asyncio.run(count_up(tmp_path / "own.db", 4))
    monkeypatch.setattr(
        AioSqliteConfiguration, "begin_transaction", AioSqliteConfiguration.begin_transaction
    )
    begin_immediately()
    assert asyncio.run(count_up(tmp_path / "ours.db", 4)) == 4
