# Queries the console at the address from the environment with psycopg, also what the console refuses, as all of asyncpg.
import asyncio

import asyncpg
import psycopg
from psycopg.rows import dict_row

with psycopg.connect("", autocommit=True, row_factory=dict_row) as connection:
    row = connection.execute("SHOW SESSIONS").fetchone()
    print(row["id"], row["tokens"], len(connection.execute("SHOW SESSIONS").fetchall()))
    for row in connection.execute("SHOW SCOPES"):
        if row["mark"]:
            print(row["scope"], row["mark"])
    for refused, prepare in [("SELECT 1", False), ("RELOAD", False), ("SHOW SESSIONS", True)]:
        try:
            connection.execute(refused, prepare=prepare)
        except psycopg.Error as error:
            print(error.sqlstate)
    print("again", len(connection.execute("SHOW SESSIONS").fetchall()))


async def with_asyncpg():
    connection = await asyncpg.connect(ssl=False)
    try:
        await connection.fetch("SHOW SESSIONS", timeout=30)
    except asyncpg.PostgresError as error:
        print(error.sqlstate)
    connection.terminate()


asyncio.run(with_asyncpg())
