"""Leads while it holds a lock of ZooKeeper: zookeeper_lock.py HOST:PORT,..

The token is the czxid of its node: the id of the transaction that created it. It rises with every change in ZooKeeper.
"""

import sys

from kazoo.client import KazooClient
from scheduler import connect, work

zookeeper = KazooClient(sys.argv[1])
zookeeper.start()
lock = zookeeper.Lock("/scheduler")
with lock:
    node = zookeeper.get(f"/scheduler/{lock.node}")[1]
    work(connect(node.czxid))
