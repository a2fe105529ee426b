"""Leads while a row holds its name, and renews that row: row_lease.py DSN

Job queues elect like this. The DSN names PostgreSQL itself, since a candidate has no token to write with.
"""

import os
import socket
import sys
import threading
import time

import psycopg
from scheduler import take, work

NAME = f"{socket.gethostname()}:{os.getpid()}"
SECONDS = 4  # more in production

direct = psycopg.connect(sys.argv[1], autocommit=True)
direct.execute("CREATE TABLE IF NOT EXISTS leases (name text PRIMARY KEY, holder text, expires timestamptz)")


def holds():
    """Takes the row if it is free, or renews it. Returns whether this process holds it now."""
    return direct.execute(
        """INSERT INTO leases VALUES ('scheduler', %s, now() + %s * interval '1 s')
        ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
        WHERE leases.holder = excluded.holder OR leases.expires < now()""",
        (NAME, SECONDS),
    ).rowcount == 1


def renew():
    while holds():
        time.sleep(SECONDS / 4)


while not holds():
    time.sleep(SECONDS / 10)
threading.Thread(target=renew, daemon=True).start()
work(take(holds))
