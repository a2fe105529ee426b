"""Writes an invoice every 200 ms: a scheduler (APScheduler) that keeps its jobs in PostgreSQL.

libpq's environment (PGHOST, PGPORT, ..) names the server.
"""

from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.blocking import BlockingScheduler
from sqlalchemy import create_engine, text

engine = create_engine("postgresql+psycopg2://")


def invoice():
    with engine.begin() as db:
        db.execute(text("INSERT INTO invoices SELECT coalesce(max(number), 0) + 1 FROM invoices"))


if __name__ == "__main__":
    scheduler = BlockingScheduler(jobstore_retry_interval=1)
    scheduler.add_jobstore(SQLAlchemyJobStore(engine=engine))
    scheduler.add_job(invoice, "interval", seconds=0.2, id="invoice", replace_existing=True)
    scheduler.start()
