"""A beat of Celery that keeps its schedule in Redis (RedBeat), and writes due jobs into PostgreSQL:

    pip install -r requirements.txt
    REDIS=redis://HOST celery -A redbeat_beat beat

Several may run: RedBeat's lock admits one at a time, which takes the next number.
"""

import os
import time

from celery import Celery
from redbeat import RedBeatScheduler
from scheduler import take


class Fenced(RedBeatScheduler):
    """Writes jobs into PostgreSQL instead of sending them to a broker."""

    db = None

    def apply_async(self, entry, **_):
        if self.db is None:  # the first job under RedBeat's lock
            self.db = take(self.lock.owned)
            print("leads with token", self.db.execute("SHOW fencing.token").fetchone()[0], flush=True)
        with self.db.transaction():
            self.db.execute("INSERT INTO jobs (name) VALUES (%s)", [entry.name])
            time.sleep(0.2)  # the rest of the job
        self.reserve(entry)


app = Celery(broker=os.environ["REDIS"])
app.conf.update(
    worker_redirect_stdouts=False,
    redbeat_lock_timeout=4,  # more in production
    beat_scheduler=Fenced,
    beat_max_loop_interval=0.5,
    beat_schedule={"invoice": {"task": "invoice", "schedule": 0.3}},
)
