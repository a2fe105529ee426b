"""psycopg2 with its pool."""

import io
import select
import threading

import psycopg2
import psycopg2.extensions
import psycopg2.pool

import suite
from suite import equal, scenario, slow, takeover, without, write


class Psycopg2(suite.Driver):
    errors = psycopg2.Error

    def connect(self, token=None, autocommit=True, **more):
        options = f"-c fencing.token={token}" if token else ""
        c = psycopg2.connect("", options=options, **more)
        c.autocommit = autocommit
        return c

    def execute(self, c, sql, values=None):
        c.cursor().execute(sql, values)

    def state(self, error):
        return error.pgcode

    def fields(self, error):
        return error.pgcode, error.diag.message_detail, error.diag.message_hint


driver = Psycopg2()
suite.common(driver)
connect, execute, refused, leader = driver.connect, driver.execute, driver.refused, driver.leader


@scenario
def batch():
    c = leader()
    takeover("asleep")
    return refused(execute, c, "; ".join((write("lost"), slow(), write("lost"))))


@scenario
def copy():
    class Rows(io.StringIO):
        """Two rows, between which another session takes over."""

        parts = ["copy\tlost\n", "copy\tlost\n"]

        def read(self, size):
            if len(self.parts) == 1:
                takeover()
            return self.parts.pop() if self.parts else ""

    c = connect(takeover())
    c.cursor().copy_from(io.StringIO("copy\tkept\n"), "jobs")
    return refused(c.cursor().copy_from, Rows(), "jobs")


@scenario
def pool():
    connections = psycopg2.pool.ThreadedConnectionPool(2, 2, "")

    def transaction(token, what):
        c = connections.getconn()
        try:
            with c:
                execute(c, f"SET LOCAL fencing.token = {token}")
                execute(c, write(what))
        finally:
            connections.putconn(c)

    return driver.after_takeover(transaction)


@scenario
def cancel():
    c = connect(takeover())
    timer = threading.Timer(1, c.cancel)
    timer.start()
    try:
        execute(c, slow())
        raise AssertionError("nothing was cancelled")
    except psycopg2.extensions.QueryCanceledError:
        execute(c, write("kept"))
    timer.join()


@scenario
def notify():
    c = connect(takeover())
    execute(c, "LISTEN jobs")
    execute(c, "NOTIFY jobs, 'done'")
    select.select([c], [], [], 5)
    c.poll()
    equal([note.payload for note in c.notifies], ["done"])
    execute(c, write("kept"))


@scenario
def objects():
    c = connect(takeover(), autocommit=False)
    made = c.lobject(mode="wb")
    made.write(b"an object")
    made.close()
    equal(c.lobject(made.oid, "rb").read(), b"an object")
    c.lobject(made.oid).unlink()
    execute(c, write("kept"))
    c.commit()


@scenario
def cursor():
    c = connect(takeover(), autocommit=False)
    rows = c.cursor("rows")
    rows.execute("SELECT generate_series(1, 1000)")
    equal(rows.fetchmany(10)[-1], (10,))
    execute(c, write("kept"))
    equal(rows.fetchmany(990)[-1], (1000,))
    c.commit()


without("psycopg2 prepares nothing, and has no binary results", "prepared", "binary")
suite.main(f"psycopg2 {psycopg2.__version__.split()[0]}")
