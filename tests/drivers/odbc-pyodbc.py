"""psqlODBC, with pyodbc and the pool of unixODBC's driver manager left off."""

import threading

import pyodbc

import suite
from suite import equal, scenario, slow, takeover, without, write

pyodbc.pooling = False


class Odbc(suite.Driver):
    errors = pyodbc.Error
    more = {"more": "pqopt={target_session_attrs=read-write};"}

    def connect(self, token=None, autocommit=True, more=""):
        options = f"pqopt={{options='-c fencing.token={token}'}};" if token else ""
        where = "Driver=PostgreSQL Unicode;Servername=127.0.0.1;Database=app;Uid=app;Pwd=pencil;"
        return pyodbc.connect(f"{where}Port={suite.port};{options}{more}", autocommit=autocommit)

    def execute(self, c, sql, *values):
        c.execute(sql, *values)

    def begin(self, c):
        c.autocommit = False

    def commit(self, c):
        c.commit()
        c.autocommit = True

    def rollback(self, c):
        c.rollback()
        c.autocommit = True

    def state(self, error):
        return error.args[0]


driver = Odbc()
suite.common(driver)
connect, execute, refused, leader = driver.connect, driver.execute, driver.refused, driver.leader


@scenario
def fields():
    """In the text."""
    old, c = takeover(), leader()
    try:
        execute(c, f"SET fencing.token = {old}")
    except pyodbc.Error as error:
        text = str(error)
        equal(error.args[0], "PF001")
        equal("DETAIL: The mark of scope " in text, True)
        return "ok" if "This process is no longer the leader. " in text else "no HINT"
    raise AssertionError("nothing was refused")


@scenario
def batch():
    c = leader()
    driver.begin(c)
    takeover("asleep")
    insert = "INSERT INTO jobs SELECT 'batch', ? FROM pg_sleep(?)"
    return refused(c.cursor().executemany, insert, [("lost", 0), ("lost", 10), ("lost", 0)])


@scenario
def prepared():
    c = connect(takeover())
    insert = "INSERT INTO jobs VALUES ('prepared', ?)"
    cursor = c.cursor()
    for _ in range(3):
        cursor.execute(insert, "kept")
    new = takeover()
    refused(cursor.execute, insert, "lost")
    try:
        execute(c, f"SET fencing.token = {new}")
    except pyodbc.Error:
        c = connect(new)
        cursor = c.cursor()
    for _ in range(3):
        cursor.execute(insert, "kept")


@scenario
def cancel():
    c = connect(takeover())
    cursor = c.cursor()
    timer = threading.Timer(1, cursor.cancel)
    timer.start()
    try:
        cursor.execute(slow())
        raise AssertionError("nothing was cancelled")
    except pyodbc.Error as error:
        equal("cancel" in str(error), True)
    timer.join()
    execute(c, write("kept"))


@scenario
def cursor():
    c = connect(takeover(), autocommit=False, more="UseDeclareFetch=1;Fetch=10;")
    rows = c.execute("SELECT generate_series(1, 1000)")
    equal(rows.fetchmany(10)[-1][0], 10)
    execute(c, write("kept"))
    equal(rows.fetchmany(990)[-1][0], 1000)
    c.commit()


@scenario
def binary():
    """bytea as a binary value."""
    c = connect(takeover(), more="ByteaAsLongVarBinary=1;")
    equal(tuple(c.execute("SELECT ?::int, ?::bytea", 7, b"\0\xff").fetchone()), (7, b"\0\xff"))
    execute(c, write("kept"))


without("ODBC has none", "copy", "notify", "objects")
without("pyodbc has none", "pool")
version = connect().getinfo(pyodbc.SQL_DRIVER_VER)
suite.main(f"psqlODBC {version} with pyodbc {pyodbc.version}")
