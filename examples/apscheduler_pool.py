"""A scheduler (APScheduler) that writes through a pool (SQLAlchemy), while it holds a lease of the proxy.

Each connection that the pool opens declares the token. libpq's environment (PGHOST, PGPORT, ..) names the proxy.
"""

import time

import psycopg2
from apscheduler.events import EVENT_JOB_ERROR
from apscheduler.schedulers.background import BlockingScheduler
from sqlalchemy import create_engine, event, text

LEASE = "SET fencing.token = 'lease:4s'"  # longer in production

election = psycopg2.connect("")
election.autocommit = True
candidate = election.cursor()
candidate.execute("SHOW fencing.status")  # fails on a server other than pgpalisade, which would accept any token
while True:
    try:
        candidate.execute(LEASE)
        break
    except psycopg2.errors.LockNotAvailable:  # 55P03: another process leads
        time.sleep(0.5)
candidate.execute("SHOW fencing.token")
token = candidate.fetchone()[0]
print("leads with token", token, flush=True)

engine = create_engine("postgresql+psycopg2://", pool_size=2)


@event.listens_for(engine, "do_connect")
def declare(_dialect, _record, _arguments, parameters):
    parameters["options"] = f"-c fencing.token={token}"


@event.listens_for(engine, "connect")
def fenced(connection, _record):
    connection.cursor().execute("SHOW fencing.status")
    connection.rollback()


def invoice():
    with engine.begin() as db:
        db.execute(text("INSERT INTO jobs (name) VALUES ('invoice')"))
        time.sleep(0.2)  # the rest of the job


def renew():
    candidate.execute(LEASE)


def stop_if_deposed(failed):
    # A connection that was ended may not say why; the next one is refused with the reason.
    if "PF001" in str(failed.exception):
        print("deposed:", failed.exception, flush=True)
        scheduler.shutdown(wait=False)


scheduler = BlockingScheduler()
scheduler.add_job(invoice, "interval", seconds=0.3)
scheduler.add_job(renew, "interval", seconds=1)
scheduler.add_listener(stop_if_deposed, EVENT_JOB_ERROR)
scheduler.start()
