"""Leads while its session holds a key of Consul: consul_lock.py http://HOST:PORT

The token is the key's ModifyIndex, an index of the whole store: it rises with every change in Consul.
"""

import json
import sys
import threading
import time
from urllib.request import Request, urlopen

from scheduler import connect, work

CONSUL = sys.argv[1]
KEY = "/v1/kv/scheduler"
SECONDS = 10  # the least that Consul accepts


def ask(method, path, body=None):
    request = Request(CONSUL + path, json.dumps(body).encode(), method=method)
    with urlopen(request, timeout=SECONDS / 3) as answer:
        return json.load(answer)


def renew():
    while True:
        time.sleep(SECONDS / 3)
        ask("PUT", f"/v1/session/renew/{session}")


session = ask("PUT", "/v1/session/create", {"TTL": f"{SECONDS}s", "LockDelay": "1s"})["ID"]
threading.Thread(target=renew, daemon=True).start()
while not ask("PUT", f"{KEY}?acquire={session}"):
    time.sleep(0.5)
entry = ask("GET", f"{KEY}?consistent")[0]
if entry.get("Session") != session:
    sys.exit("the lock is lost")
work(connect(entry["ModifyIndex"]))
