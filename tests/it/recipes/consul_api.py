"""The part of Consul's API that a lock needs, for the test of the recipe: Debian 12 has no Consul.

    consul_api.py PORT

By https://developer.hashicorp.com/consul/api-docs/session and ../kv: a session that was not renewed in its TTL is
invalid, its keys are released, and nobody acquires them for its LockDelay. ModifyIndex is an index of the whole
store; LockIndex counts how often a key was acquired, but not by who has it.
"""

import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

sessions, keys, delays, index, turn = {}, {}, {}, 41, Lock()


def seconds(duration):
    assert duration.endswith("s")
    return int(duration[:-1])


def write(name, **fields):
    global index
    index += 1
    entry = keys.setdefault(name, {"Key": name, "CreateIndex": index, "LockIndex": 0})
    entry.update(fields, ModifyIndex=index)


def expire():
    now = time.monotonic()
    for session in [s for s, (ends, _, _) in sessions.items() if ends < now]:
        _, _, delay = sessions.pop(session)
        for name in [n for n, entry in keys.items() if entry.get("Session") == session]:
            del keys[name]["Session"]
            write(name)
            delays[name] = now + delay


def acquire(name, session):
    """Return status and response."""
    if session not in sessions:
        return 500, f"invalid session {session}"
    entry = keys.get(name, {"LockIndex": 0})
    holder = entry.get("Session")
    if holder not in (None, session) or delays.get(name, 0) > time.monotonic():
        return 200, False
    write(name, Session=session, LockIndex=entry["LockIndex"] + (holder is None))
    return 200, True


def change(method, path, query, body):
    """Return status and response."""
    expire()
    match method, path.removeprefix("/v1/").split("/", 2):
        case "PUT", ["session", "create"]:
            ttl, session = seconds(body["TTL"]), str(uuid4())
            if not 10 <= ttl <= 86400:
                return 400, "Invalid Session TTL"
            sessions[session] = (time.monotonic() + ttl, ttl, seconds(body["LockDelay"]))
            return 200, {"ID": session}
        case "PUT", ["session", "renew", session] if session in sessions:
            _, ttl, delay = sessions[session]
            sessions[session] = (time.monotonic() + ttl, ttl, delay)
            return 200, [{"ID": session}]
        case "PUT", ["kv", name] if "acquire" in query:
            return acquire(name, query["acquire"][0])
        case "GET", ["kv", name] if name in keys:
            return 200, [keys[name]]
        case "DELETE", ["kv", name]:
            keys.pop(name, None)
            return 200, True
    return 404, None


class Handler(BaseHTTPRequestHandler):
    def answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
        url = urlsplit(self.path)
        with turn:
            status, answer = change(self.command, url.path, parse_qs(url.query), body)
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    do_GET = do_PUT = do_DELETE = answer


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
