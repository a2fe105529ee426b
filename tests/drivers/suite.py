"""What the suites in Python share: the scenarios that are SQL only, and how a suite reports."""

import inspect
import os
import re
import subprocess
import sys

port = os.environ["PGPORT"]
now = ""  # the scenario that runs
scenarios = {}


class NotHere(Exception):
    """The driver has nothing like it; the text says so."""


class Driver:
    """How to do with a driver what all can do. `c` is a connection in autocommit mode."""

    errors = Exception
    more = {"target_session_attrs": "read-write"}

    def begin(self, c):
        self.execute(c, "BEGIN")

    def commit(self, c):
        self.execute(c, "COMMIT")

    def rollback(self, c):
        self.execute(c, "ROLLBACK")

    def end(self, c):
        """Commits without autocommit mode."""
        c.commit()

    def leader(self):
        """A connection that holds the token and has written."""
        c = self.connect(takeover())
        self.execute(c, write("kept"))
        return c

    def after_takeover(self, transaction, times=1):
        """In one pool, the first transactions with the new token fail at most once for each of its connections."""
        old = takeover()
        for _ in range(times):
            transaction(old, "kept")
        new = takeover()
        self.refused(transaction, old, "lost")
        for tries in range(3):
            try:
                for _ in range(times):
                    transaction(new, "kept")
                return f"after {tries}" if tries else "ok"
            except self.errors:
                if tries == 2:
                    raise

    def refused(self, doing, *arguments):
        """How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost."""
        try:
            doing(*arguments)
        except self.errors as error:
            for code in ("PF001", "PF002", "08007"):
                if self.state(error) == code:
                    return code
                if f"{code}: " in str(error):
                    return f"({code})"
            if re.search("clos|lost|terminat", str(error)):
                return "lost"
            raise
        raise AssertionError("nothing was refused")


def takeover(*when):
    """Deposes everybody, and returns the token of the new leader."""
    run = subprocess.run([os.environ["TAKEOVER"], *when], check=True, stdout=subprocess.PIPE, text=True)
    return run.stdout.strip()


def write(what):
    return f"INSERT INTO jobs VALUES ('{now}', '{what}')"


def slow():
    return f"INSERT INTO jobs SELECT '{now}', 'lost' FROM pg_sleep(10)"


def equal(one, other):
    if one != other:
        raise AssertionError(f"{one!r} is not {other!r}")


def scenario(function):
    scenarios[function.__name__.replace("_", "-")] = function
    return function


def without(reason, *names):
    """Leaves out scenarios, for this reason."""

    def refuse():
        raise NotHere(reason)

    scenarios.update(dict.fromkeys(names, refuse))


def common(driver):
    """The scenarios that are SQL only."""
    connect, execute, refused, leader = driver.connect, driver.execute, driver.refused, driver.leader
    begin, commit, rollback = driver.begin, driver.commit, driver.rollback

    @scenario
    def shares():
        """In transaction mode nothing that the driver sets for itself keeps the server connection."""
        c = leader()
        return "ok" if takeover("keeps") == "0" else "keeps"

    @scenario
    def string():
        leader()

    def follow(c):
        execute(c, f"SET fencing.token = {takeover()}")
        execute(c, write("kept"))

    @scenario
    def set():
        follow(connect())

    @scenario
    def attrs():
        follow(connect(**driver.more))

    @scenario
    def local():
        c = connect()
        begin(c)
        execute(c, f"SET LOCAL fencing.token = {takeover()}")
        execute(c, write("kept"))
        commit(c)
        equal(refused(execute, c, write("lost")), "PF002")

    @scenario
    def old_string():
        old = takeover()
        leader()
        return refused(connect, old)

    @scenario
    def old_set():
        old, new, c = takeover(), takeover(), connect()
        cell = refused(execute, c, f"SET fencing.token = {old}")
        refused(execute, c, write("lost"))
        execute(c, f"SET fencing.token = {new}")
        execute(c, write("kept"))
        return cell

    @scenario
    def old_local():
        old, new, c = takeover(), takeover(), connect()
        begin(c)
        cell = refused(execute, c, f"SET LOCAL fencing.token = {old}")
        rollback(c)
        begin(c)
        execute(c, f"SET LOCAL fencing.token = {new}")
        execute(c, write("kept"))
        commit(c)
        return cell

    @scenario
    def idle():
        c = leader()
        takeover()
        return refused(execute, c, write("lost"))

    @scenario
    def transaction():
        c = leader()
        begin(c)
        execute(c, write("lost"))
        takeover()
        return refused(commit, c)

    @scenario
    def autocommit():
        c = connect(autocommit=False)
        execute(c, f"SET fencing.token = {takeover()}")
        execute(c, write("kept"))
        driver.end(c)
        execute(c, write("lost"))
        takeover()
        return refused(driver.end, c)

    @scenario
    def statement():
        c = leader()
        takeover("asleep")
        return refused(execute, c, slow())

    @scenario
    def fields():
        old, c = takeover(), leader()
        try:
            execute(c, f"SET fencing.token = {old}")
        except driver.errors as error:
            state, detail, hint = driver.fields(error)
            equal(state, "PF001")
            equal(detail[:18], "The mark of scope ")
            equal(hint[:38], "This process is no longer the leader. ")
            return
        raise AssertionError("nothing was refused")


def main(version, run=lambda result: result):
    global now
    print("version:", version, flush=True)
    for now, function in scenarios.items():
        if sys.argv[1:] and now not in sys.argv[1:]:
            continue
        try:
            result = function()
            cell = (run(result) if inspect.isawaitable(result) else result) or "ok"
        except NotHere as reason:
            cell = f"n/a {reason}"
        except Exception as error:
            where = error.__traceback__.tb_next
            while where.tb_next and where.tb_frame.f_code.co_filename == where.tb_next.tb_frame.f_code.co_filename:
                where = where.tb_next
            place = f"{os.path.basename(where.tb_frame.f_code.co_filename)}:{where.tb_lineno}"
            cell = f"FAILED at {place}: {type(error).__name__}: {error}".replace("\n", " ")
        print(f"{now}: {cell}", flush=True)
