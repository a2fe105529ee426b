"""asyncpg with its pool."""

import asyncio
import datetime

import asyncpg

import suite
from suite import equal, scenario, slow, takeover, without, write

runner = asyncio.Runner()
run = runner.run


async def connect(token=None, **more):
    return await asyncpg.connect(server_settings={"fencing.token": token} if token else {}, **more)


class Asyncpg(suite.Driver):
    errors = (asyncpg.PostgresError, asyncpg.InterfaceError, ConnectionError)

    def connect(self, token=None, **more):
        return run(connect(token, **more))

    def execute(self, c, sql):
        run(asyncio.sleep(0.02))  # the loop of a program runs, and hears of the end
        run(c.execute(sql))

    def state(self, error):
        return getattr(error, "sqlstate", None)

    def fields(self, error):
        return error.sqlstate, error.detail, error.hint


driver = Asyncpg()
suite.common(driver)


@scenario
def batch():
    c = driver.leader()
    takeover("asleep")
    insert = "INSERT INTO jobs SELECT 'batch', $1 FROM pg_sleep($2)"
    return driver.refused(lambda: run(c.executemany(insert, [("lost", 0), ("lost", 10), ("lost", 0)])))


@scenario
def copy():
    async def rows():
        yield b"copy\tlost\n"
        takeover()
        yield b"copy\tlost\n"

    c = driver.connect(takeover())
    run(c.copy_records_to_table("jobs", records=[("copy", "kept")]))
    return driver.refused(lambda: run(c.copy_to_table("jobs", source=rows())))


@scenario
def pool():
    async def open_pool():
        return await asyncpg.create_pool(min_size=2, max_size=2)

    async def transaction(token, what):
        async with connections.acquire() as c, c.transaction():
            await c.execute(f"SET LOCAL fencing.token = {token}")
            await c.execute(write(what))

    connections = run(open_pool())
    cell = driver.after_takeover(lambda *job: run(transaction(*job)))
    run(connections.close())
    return cell


@scenario
async def prepared():
    """asyncpg prepares each statement, and keeps it."""
    c = await connect(takeover())
    insert = "INSERT INTO jobs VALUES ('prepared', $1)"
    for _ in range(3):
        await c.execute(insert, "kept")
    new = takeover()
    try:
        await c.execute(insert, "lost")
        raise AssertionError("nothing was refused")
    except driver.errors:
        pass
    if c.is_closed():
        c = await connect(new)
    else:
        await c.execute(f"SET fencing.token = {new}")
    for _ in range(3):
        await c.execute(insert, "kept")


@scenario
async def cancel():
    c = await connect(takeover())
    try:
        await c.execute(slow(), timeout=1)
        raise AssertionError("nothing was cancelled")
    except TimeoutError:
        await c.execute(write("kept"))


@scenario
async def notify():
    c = await connect(takeover())
    heard = asyncio.get_running_loop().create_future()
    await c.add_listener("jobs", lambda _c, _pid, _channel, payload: heard.set_result(payload))
    await c.execute("NOTIFY jobs, 'done'")
    equal(await asyncio.wait_for(heard, 5), "done")
    await c.execute(write("kept"))


@scenario
async def cursor():
    c = await connect(takeover())
    async with c.transaction():
        rows = await c.cursor("SELECT generate_series(1, 1000)")
        equal((await rows.fetch(10))[-1][0], 10)
        await c.execute(write("kept"))
        equal((await rows.fetch(990))[-1][0], 1000)


@scenario
async def binary():
    """asyncpg's only format."""
    c = await connect(takeover())
    values = [7, 2**40, 0.25, b"\0\xff", datetime.datetime(2026, 11, 26, 1, 2, 3, 4), "text"]
    row = await c.fetchrow("SELECT $1::int, $2::bigint, $3::float8, $4::bytea, $5::timestamp, $6::text", *values)
    equal(list(row), values)
    await c.execute(write("kept"))


without("asyncpg has none", "objects", "autocommit")
suite.main(f"asyncpg {asyncpg.__version__}", run)
