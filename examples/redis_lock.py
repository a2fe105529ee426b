"""Leads while it holds a lock in Redis (SET NX PX), and takes the next number: redis_lock.py URL"""

import sys
import threading
import time

import redis
from scheduler import take, work

SECONDS = 4  # more in production

lock = redis.from_url(sys.argv[1]).lock("scheduler", timeout=SECONDS, thread_local=False)
lock.acquire()


def renew():
    while lock.reacquire():
        time.sleep(SECONDS / 4)


threading.Thread(target=renew, daemon=True).start()
work(take(lock.owned))
