# Queries the console at the address from the environment: in text, in binary, with prepared statements, and with
# statements that it refuses.
import asyncio
import os
import sys


async def with_asyncpg():
    import asyncpg

    connection = await asyncpg.connect(ssl=False)
    row = await connection.fetchrow("SHOW SESSIONS")
    print(row["id"], row["tokens"], len(await connection.fetch("SHOW SESSIONS")))
    for row in await connection.fetch("SHOW SCOPES"):
        if row["mark"]:
            print(row["scope"], row["mark"])
    for refused in ["SELECT 1", "RELOAD"]:
        try:
            await connection.execute(refused)
        except asyncpg.PostgresError as error:
            print(error.sqlstate)
    print("again", len(await connection.fetch("SHOW SESSIONS")))
    await connection.close()


def with_psycopg():
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect("", autocommit=True, row_factory=dict_row) as connection:
        row = connection.execute("SHOW SESSIONS").fetchone()
        print(row["id"], row["tokens"], len(connection.execute("SHOW SESSIONS", binary=True).fetchall()))
        for row in connection.execute("SHOW SCOPES", prepare=True, binary=True):
            if row["mark"]:
                print(row["scope"], row["mark"])
        for refused in ["SELECT 1", "RELOAD"]:
            try:
                connection.execute(refused)
            except psycopg.Error as error:
                print(error.sqlstate)
        print("again", len(connection.execute("SHOW SESSIONS", prepare=True).fetchall()))


with_psycopg() if sys.argv[1] == "psycopg" else asyncio.run(with_asyncpg())
