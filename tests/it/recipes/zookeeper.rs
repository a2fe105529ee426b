//! ZooKeeper: the czxid of the lock's node.

use pgpalisade_test_servers::zookeeper::ZooKeeper;

use super::{Candidate, stage, who_sleeps_is_refused};

#[test]
fn a_lock_of_zookeeper_has_a_number() {
    let (stage, zookeeper) = (stage(), ZooKeeper::start());
    let (hosts, proxy) = (zookeeper.hosts(), stage.proxy.endpoint());
    let start = |name| Candidate::start(name, "zookeeper_lock.py", &[&hosts], &proxy);
    who_sleeps_is_refused(&stage, start);
}
