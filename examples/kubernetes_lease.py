"""Leads while it holds a Lease of Kubernetes, as client-go does: kubernetes_lease.py IDENTITY take|transitions

With `take` it takes the next number under the Lease. With `transitions` its token is leaseTransitions + 1, which two
processes with one IDENTITY would share, and which starts again if the Lease is deleted.
"""

import sys
import threading
import time
from datetime import datetime, timezone

from kubernetes import client, config
from scheduler import connect, take, work

IDENTITY, WAY = sys.argv[1:]
SECONDS = 4  # client-go: 15
PLACE = ("scheduler", "default")

config.load_config()
leases = client.CoordinationV1Api()
seen = (None, 0.0)  # the version last read, and when it changed by the local clock


def acquire_or_renew():
    """client-go's tryAcquireOrRenew: the Lease if this process holds it now, else None."""
    global seen
    now = datetime.now(timezone.utc)
    mine = client.V1LeaseSpec(
        holder_identity=IDENTITY, lease_duration_seconds=SECONDS, acquire_time=now, renew_time=now, lease_transitions=0
    )
    try:
        try:
            lease = leases.read_namespaced_lease(*PLACE)
        except client.ApiException as error:
            if error.status != 404:
                raise
            body = client.V1Lease(metadata=client.V1ObjectMeta(name=PLACE[0]), spec=mine)
            return leases.create_namespaced_lease(PLACE[1], body)
        if lease.metadata.resource_version != seen[0]:
            seen = (lease.metadata.resource_version, time.monotonic())
        held = lease.spec
        if held.holder_identity == IDENTITY:
            mine.acquire_time, mine.lease_transitions = held.acquire_time, held.lease_transitions
        elif held.holder_identity and time.monotonic() < seen[1] + held.lease_duration_seconds:
            return None
        else:
            mine.lease_transitions = held.lease_transitions + 1
        lease.spec = mine  # with the resourceVersion that was read: refused if it has changed since
        return leases.replace_namespaced_lease(*PLACE, lease)
    except client.ApiException as error:
        if error.status != 409:
            raise
        return None


def holds():
    return leases.read_namespaced_lease(*PLACE).spec.holder_identity == IDENTITY


def renew():
    while acquire_or_renew():
        time.sleep(SECONDS / 4)


while not (lease := acquire_or_renew()):
    time.sleep(SECONDS / 10)
threading.Thread(target=renew, daemon=True).start()
work(take(holds) if WAY == "take" else connect(lease.spec.lease_transitions + 1))
