"""psycopg 3 with its pool, asynchronous; python-psycopg.py makes the synchronous suite of it."""

import asyncio
import datetime
import threading

import psycopg
import psycopg_pool

import suite
from suite import equal, scenario, slow, takeover, write

runner = asyncio.Runner()


def run(result):
    return runner.run(result) if asyncio.iscoroutine(result) else result


async def connect(token=None, **more):
    options = f"-c fencing.token={token}" if token else ""
    return await psycopg.AsyncConnection.connect("", options=options, **{"autocommit": True, **more})


class Psycopg(suite.Driver):
    errors = psycopg.Error

    def connect(self, token=None, **more):
        return run(connect(token, **more))

    def execute(self, c, sql):
        run(c.execute(sql))

    def end(self, c):
        run(c.commit())

    def state(self, error):
        return error.sqlstate

    def fields(self, error):
        return error.sqlstate, error.diag.message_detail, error.diag.message_hint


driver = Psycopg()
suite.common(driver)


@scenario
def batch():
    async def pipeline(c):
        async with c.pipeline():
            await c.execute(write("lost"))
            await c.execute(slow())
            await c.execute(write("lost"))

    c = driver.leader()
    takeover("asleep")
    return driver.refused(lambda: run(pipeline(c)))


@scenario
def copy():
    async def feed(c):
        async with c.cursor() as cursor:
            async with cursor.copy("COPY jobs FROM STDIN (FORMAT binary)") as copy:
                await copy.write_row(("copy", "lost"))
                takeover()
                await copy.write_row(("copy", "lost"))

    async def whole(c):
        async with c.cursor() as cursor, cursor.copy("COPY jobs FROM STDIN") as copy:
            await copy.write_row(("copy", "kept"))

    c = driver.connect(takeover())
    run(whole(c))
    return driver.refused(lambda: run(feed(c)))


@scenario
def pool():
    async def transaction(token, what):
        async with connections.connection() as c:
            await c.execute(f"SET LOCAL fencing.token = {token}")
            await c.execute(write(what))

    connections = psycopg_pool.AsyncConnectionPool("", min_size=2, max_size=2, open=False)
    run(connections.open(wait=True))
    cell = driver.after_takeover(lambda *job: run(transaction(*job)))
    run(connections.close())
    return cell


@scenario
async def prepared():
    c = await connect(takeover(), prepare_threshold=1)
    insert = "INSERT INTO jobs VALUES ('prepared', %s)"
    for _ in range(4):
        await c.execute(insert, ("kept",))
    new = takeover()
    try:
        await c.execute(insert, ("lost",))
        raise AssertionError("nothing was refused")
    except psycopg.Error:
        pass
    if c.closed:
        c = await connect(new, prepare_threshold=1)
    else:
        await c.execute(f"SET fencing.token = {new}")
    for _ in range(4):
        await c.execute(insert, ("kept",))


@scenario
async def cancel():
    c = await connect(takeover())
    timer = threading.Timer(1, c.cancel)
    timer.start()
    try:
        await c.execute(slow())
        raise AssertionError("nothing was cancelled")
    except psycopg.errors.QueryCanceled:
        await c.execute(write("kept"))
    timer.join()


@scenario
async def notify():
    token = takeover()
    c = await connect(token)
    await c.execute("LISTEN jobs")
    async with await connect(token) as other:
        await other.execute("NOTIFY jobs, 'done'")
    equal([note.payload async for note in c.notifies(timeout=5, stop_after=1)], ["done"])
    await c.execute(write("kept"))


@scenario
async def objects():
    c = await connect(takeover())
    made = await (await c.execute("SELECT lo_from_bytea(0, %s)", (b"an object",))).fetchone()
    async with c.transaction():
        read = await (await c.execute("SELECT lo_get(%s)", made)).fetchone()
        await c.execute("SELECT lo_unlink(%s)", made)
        await c.execute(write("kept"))
    equal(read, (b"an object",))


@scenario
async def cursor():
    c = await connect(takeover())
    async with c.transaction():
        async with c.cursor("rows") as rows:
            await rows.execute("SELECT generate_series(1, 1000)")
            equal((await rows.fetchmany(10))[-1], (10,))
            await c.execute(write("kept"))
            equal((await rows.fetchmany(990))[-1], (1000,))


@scenario
async def binary():
    c = await connect(takeover())
    values = [7, 2**40, 0.25, b"\0\xff", datetime.datetime(2026, 11, 26, 1, 2, 3, 4), "text"]
    async with c.cursor(binary=True) as rows:
        await rows.execute("SELECT %b::int, %b::bigint, %b::float8, %b::bytea, %b::timestamp, %b::text", values)
        equal(list(await rows.fetchone()), values)
        await rows.execute("INSERT INTO jobs VALUES ('binary', %b)", ("kept",))


suite.main(f"psycopg {psycopg.__version__}, libpq {psycopg.pq.version_pretty(psycopg.pq.version())}", run)
