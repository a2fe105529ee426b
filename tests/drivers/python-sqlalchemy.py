"""SQLAlchemy 2 with its pool, on psycopg."""

import sqlalchemy
from sqlalchemy import text

import suite
from suite import equal, scenario, takeover, without, write


def engine(token=None, **more):
    options = {"options": f"-c fencing.token={token}"} if token else {}
    return sqlalchemy.create_engine("postgresql+psycopg://", connect_args=options, **more)


class SQLAlchemy(suite.Driver):
    errors = sqlalchemy.exc.DBAPIError

    def connect(self, token=None, autocommit=True):
        return engine(token, isolation_level="AUTOCOMMIT" if autocommit else None).connect()

    def execute(self, c, sql):
        c.execute(text(sql))

    def state(self, error):
        return error.orig.sqlstate

    def fields(self, error):
        return error.orig.sqlstate, error.orig.diag.message_detail, error.orig.diag.message_hint


driver = SQLAlchemy()
suite.common(driver)
refused = driver.refused


@scenario
def batch():
    """Many rows in one call, which SQLAlchemy makes one statement of."""
    jobs = sqlalchemy.table("jobs", sqlalchemy.column("scenario"), sqlalchemy.column("what"))
    rows = [{"what": "lost", "seconds": seconds} for seconds in (0, 10, 0)]
    insert = text("INSERT INTO jobs SELECT 'batch', :what FROM pg_sleep(:seconds)")
    with engine(takeover()).connect() as c:
        c.execute(sqlalchemy.insert(jobs), [{"scenario": "batch", "what": "kept"}] * 2)
        c.commit()
        takeover("asleep")
        return refused(c.execute, insert, rows)


def pooled(name, times):
    connections = engine(pool_size=2)

    def transaction(token, what):
        with connections.begin() as c:
            driver.execute(c, f"SET LOCAL fencing.token = {token}")
            c.execute(text("INSERT INTO jobs VALUES (:name, :what)"), {"name": name, "what": what})

    return driver.after_takeover(transaction, times)


@scenario
def pool():
    return pooled("pool", 1)


@scenario
def prepared():
    """psycopg prepares what it has sent five times."""
    return pooled("prepared", 8)


@scenario
def cursor():
    with engine(takeover()).connect() as c:
        rows = c.execute(text("SELECT generate_series(1, 1000)"), execution_options={"stream_results": True})
        equal(rows.fetchmany(10)[-1][0], 10)
        driver.execute(c, write("kept"))
        equal(rows.fetchmany(990)[-1][0], 1000)
        c.commit()


without("that of the driver beneath", "copy", "cancel", "notify", "objects", "binary", "attrs")
suite.main(f"SQLAlchemy {sqlalchemy.__version__} on psycopg")
