"""Leads while it holds a lock in etcd: etcd_lock.py http://127.0.0.1:2379

The token is the `create_revision` of its key. etcd's JSON gateway needs no client library.
"""

import base64
import json
import sys
import threading
import time
import urllib.request

from scheduler import connect, work

NAME = base64.b64encode(b"scheduler").decode()
SECONDS = 4  # more in production


def ask(path, **request):
    with urllib.request.urlopen(sys.argv[1] + path, json.dumps(request).encode()) as answer:
        return json.load(answer)


def renew():
    while True:
        time.sleep(SECONDS / 4)
        ask("/v3/lease/keepalive", ID=lease)


lease = ask("/v3/lease/grant", TTL=SECONDS)["ID"]
threading.Thread(target=renew, daemon=True).start()
key = ask("/v3/lock/lock", name=NAME, lease=lease)["key"]  # waits while others lead
found = ask("/v3/kv/range", key=key).get("kvs")
if not found:
    sys.exit("the lock is lost")
work(connect(found[0]["create_revision"]))
