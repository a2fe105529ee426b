# Logs in with settings from the environment, and prints whether the connection to PostgreSQL is encrypted.
import asyncio
import os
import ssl
import sys

driver, query = sys.argv[1:]


async def with_asyncpg():
    import asyncpg

    context = False
    if os.environ["PGSSLMODE"] == "verify-full":
        context = ssl.create_default_context(cafile=os.environ["PGSSLROOTCERT"])
    connection = await asyncpg.connect(
        host=os.environ["PGHOST"], user="app", password=os.environ["PGPASSWORD"], ssl=context
    )
    print(await connection.fetchval(query))


def with_psycopg():
    import psycopg

    with psycopg.connect("") as connection:
        print(connection.execute(query).fetchone()[0])


try:
    with_psycopg() if driver == "psycopg" else asyncio.run(with_asyncpg())
except Exception as error:
    sys.exit(str(error))
