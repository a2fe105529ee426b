"""The part of Kubernetes' API that a Lease needs, for the test of the recipe: Debian has no kube-apiserver.

    lease_api.py PORT [CERTIFICATE KEY TOKEN]

It keeps one namespace in memory. As there, an update is refused if the resourceVersion that it brings is not that of
the resource, and a deleted Lease takes its leaseTransitions with it. With a certificate it speaks TLS, and wants the
token from whoever asks.
"""

import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

PORT, *TLS = sys.argv[1:]
BEARER = f"Bearer {TLS[2]}" if TLS else None
COLLECTION = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
leases, revision, turn = {}, 0, Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def store(self, name, lease):
        global revision
        revision += 1
        lease["metadata"]["resourceVersion"] = str(revision)
        leases[name] = lease
        return lease

    def change(self, name, body):
        """Return status and response."""
        kept = leases.get(name)
        if self.command == "POST":
            if kept is None:
                return 201, self.store(name, body)
            return 409, {"reason": "AlreadyExists"}
        if kept is None:
            return 404, {"reason": "NotFound"}
        if self.command == "GET":
            return 200, kept
        if self.command == "DELETE":
            return 200, leases.pop(name)
        brings = body["metadata"].get("resourceVersion", kept["metadata"]["resourceVersion"])
        if brings != kept["metadata"]["resourceVersion"]:
            return 409, {"reason": "Conflict"}
        return 200, self.store(name, body)

    def answer(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        name = body["metadata"]["name"] if self.command == "POST" else self.path.removeprefix(f"{COLLECTION}/")
        if self.headers.get("Authorization") == BEARER:
            with turn:
                status, answer = self.change(name, body)
        else:
            status, answer = 401, {"reason": "Unauthorized", "message": "Unauthorized"}
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PUT = do_DELETE = answer


server = ThreadingHTTPServer(("127.0.0.1", int(PORT)), Handler)
if TLS:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["h2", "http/1.1"])
    context.load_cert_chain(*TLS[:2])
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
