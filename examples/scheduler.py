"""The leader of these examples: a scheduler that does one job after the other, each in a transaction.

libpq's environment (PGHOST, PGPORT, ..) names the proxy. The table is in docs/elections.md.
A deposed leader ends with an error; its supervisor starts it again, as a candidate.
"""

import sys
import time

import psycopg


def connect(token):
    """A session of the leader with this token."""
    db = psycopg.connect(options=f"-c fencing.token={token}", autocommit=True)
    db.execute("SHOW fencing.status")  # fails on a server other than pgpalisade, which would accept any token
    return db


def take(holds):
    """A session with the token after the mark, under a lock without a number. `holds` checks the lock."""
    db = psycopg.connect(autocommit=True)
    while True:
        mark = db.execute("SHOW fencing.mark").fetchone()[0] or 0
        if not holds():  # checked after the mark was read
            sys.exit("the lock is lost")
        try:
            db.execute(f"SET fencing.token = 'after:{mark}'")
            return db
        except psycopg.Error as error:
            if error.sqlstate != "PF001":  # PF001: another process has taken a number since
                raise


def work(db):
    """Does jobs until it is deposed, without checking whether it still leads."""
    print("leads with token", db.execute("SHOW fencing.token").fetchone()[0], flush=True)
    while True:
        with db.transaction():
            db.execute("INSERT INTO jobs (name) VALUES ('invoice')")
            time.sleep(0.2)  # the rest of the job
