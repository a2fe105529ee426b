//! ZooKeeper: the czxid of the lock's node.

use pgpalisade_harness::child::Running;
use pgpalisade_tests::machine::free_port;
use pgpalisade_tests::postgres::{scratch_dir, unprivileged};

use super::{Candidate, KILL, stage, who_sleeps_is_refused};

#[test]
fn a_lock_of_zookeeper_has_a_number() {
    let (dir, port) = (scratch_dir(), free_port());
    let settings = format!(
        "tickTime=200\nmaxSessionTimeout=2000\nadmin.enableServer=false\ndataDir={}\n\
         clientPort={port}\nclientPortAddress=127.0.0.1\n",
        dir.path().join("data").display()
    );
    let file = dir.path().join("zoo.cfg");
    std::fs::write(&file, settings).unwrap();
    let mut command = unprivileged("java");
    command
        .args(["-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp"])
        .arg("/usr/share/java/zookeeper.jar")
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file)
        .current_dir(dir.path());
    // Candidates wait until it listens.
    let _zookeeper = Running::spawn(&mut command, dir.path().join("log"), KILL).unwrap();
    let (stage, hosts) = (stage(), format!("127.0.0.1:{port}"));
    let start = |name| {
        Candidate::start(
            name,
            "zookeeper_lock.py",
            &[&hosts],
            &stage.proxy.endpoint(),
        )
    };
    who_sleeps_is_refused(&stage, start);
}
