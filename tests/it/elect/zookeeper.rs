//! `--with zookeeper:PATH`: candidates of an election in ZooKeeper.

use std::time::{Duration, Instant};

use pgpalisade_tests::machine::{Signal, wait_for};
use pgpalisade_tests::stage::Stage;
use pgpalisade_tests::zookeeper::ZooKeeper;

use super::{
    Candidate, assert_fenced, governed, pause, resume, rows_of, token_of, wait_for_terms, writer,
};

const PATH: &str = "/elections/jobs";
const LOST: &str = "lost zookeeper:/elections/jobs: ";
const REMOVED: &str = "somebody has deleted its node";

pub(super) fn arguments<'a>(hosts: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let with = [
        "jobs",
        "--with",
        "zookeeper:/elections/jobs",
        "--zookeeper",
        hosts,
    ];
    [&with, more].concat()
}

fn candidacies(zookeeper: &ZooKeeper, count: usize) -> Vec<(String, u64, String)> {
    wait_for("the candidacies", || {
        let nodes = zookeeper.nodes(PATH);
        (nodes.len() == count).then_some(nodes)
    })
}

#[test]
fn a_leader_of_zookeeper_that_slept_is_fenced_and_told_to_end() {
    let (stage, zookeeper) = (governed(), ZooKeeper::start(1));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    let arguments = arguments(&hosts, &["--ttl", "3s"]);
    let first = Candidate::start(&arguments, &writer(), &proxy);
    let token = token_of(&first);
    wait_for("its rows", || (rows_of(&stage, &token) > 1).then_some(()));
    let second = Candidate::start(&arguments, &writer(), &proxy);
    let [(_, czxid, first_session), (_, _, second_session)] = &candidacies(&zookeeper, 2)[..]
    else {
        panic!("two candidates");
    };
    assert_eq!(token, czxid.to_string());
    assert_ne!(first_session, second_session);
    // Longer than a session lives: it is kept.
    std::thread::sleep(Duration::from_secs(5));
    assert!(!first.output().contains(LOST), "{}", first.output());
    pause(&first);
    let later = token_of(&second);
    assert!(later.parse::<u64>().unwrap() > token.parse().unwrap());
    assert_fenced(&stage, &first, [&token, &later]);
    resume(&first);
    first.wait_for(LOST);
    first.wait_for("told to end");
    let nodes = candidacies(&zookeeper, 2);
    assert!(nodes.iter().all(|(_, _, session)| session != first_session));
    // It leads again behind the second one, which gives the lead back at once.
    drop(second);
    wait_for_terms(&first, 2);
    assert!(token_of(&first).parse::<u64>().unwrap() > later.parse().unwrap());
}

#[test]
fn a_leader_of_zookeeper_that_was_killed_is_followed() {
    let (stage, zookeeper) = (governed(), ZooKeeper::start(1));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    let mut first = Candidate::start(&arguments(&hosts, &["--ttl", "3s"]), &writer(), &proxy);
    let token = token_of(&first);
    let second = Candidate::start(&arguments(&hosts, &["--ttl", "3s"]), &writer(), &proxy);
    candidacies(&zookeeper, 2);
    first.process.signal(Signal::KILL);
    let later = token_of(&second);
    assert_fenced(&stage, &first, [&token, &later]);
}

/// Each waits for the one in front of it, be it one of kazoo's, and gives the lead back at once.
#[test]
fn it_stands_in_the_line_of_kazoo() {
    let (stage, zookeeper) = (Stage::start(), ZooKeeper::start(1));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    // Were the sessions waited for, it would take half a minute.
    let arguments = arguments(&hosts, &["--ttl", "30s"]);
    let mut first = Candidate::start(&arguments, "sleep 60", &proxy);
    let token = token_of(&first);
    let leads = "import time
def lead():
    print('kazoo leads', flush=True)
    time.sleep(1)
    print('kazoo ends', flush=True)
zk.Election(path).run(lead)
zk.stop()";
    let kazoo = Candidate::spawn(zookeeper.kazoo_command(leads, PATH));
    candidacies(&zookeeper, 2);
    let next = Candidate::start(&arguments, "sleep 60", &proxy);
    candidacies(&zookeeper, 3);
    assert!(!kazoo.output().contains("leads"), "{}", kazoo.output());
    let begun = Instant::now();
    first.process.signal(Signal::TERM);
    assert_eq!(first.exit_code(), 143);
    let later = token_of(&next);
    assert!(kazoo.output().contains("kazoo ends"), "{}", kazoo.output());
    assert!(later.parse::<u64>().unwrap() > token.parse().unwrap());
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
}

#[test]
fn a_node_that_was_deleted_ends_its_term() {
    let (stage, zookeeper) = (governed(), ZooKeeper::start(1));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    let arguments = arguments(&hosts, &["--ttl", "30s"]);
    let leader = Candidate::start(&arguments, &writer(), &proxy);
    let token = token_of(&leader);
    let delete = |index: usize, of: usize| {
        let nodes = candidacies(&zookeeper, of);
        zookeeper.delete(&format!("{PATH}/{}", nodes[index].0));
    };
    delete(0, 1);
    leader.wait_for(LOST);
    leader.wait_for(REMOVED);
    leader.wait_for("told to end");
    wait_for_terms(&leader, 2);
    assert_ne!(token_of(&leader), token);
    // One that waits for its turn must not take it without a node.
    let next = Candidate::start(&arguments, &writer(), &proxy);
    delete(1, 2);
    next.wait_for("the candidacy was lost: somebody has deleted its node");
    assert!(!next.output().contains("leads"), "{}", next.output());
}

/// Whoever has asked for a longer time than sessions get must step down before the shorter one is over.
#[test]
fn whoever_cannot_reach_zookeeper_steps_down_before_its_session_ends() {
    let (stage, zookeeper) = (governed(), ZooKeeper::with_sessions(1, 4000));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    let arguments = arguments(&hosts, &["--ttl", "60s", "--grace", "500ms", "--once"]);
    let mut leader = Candidate::start(&arguments, &writer(), &proxy);
    token_of(&leader);
    leader.wait_for("runs as");
    zookeeper.pause(0);
    let begun = Instant::now();
    leader.wait_for(LOST);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{:?}",
        begun.elapsed()
    );
    leader.wait_for("told to end");
    assert_eq!(leader.exit_code(), 75, "{}", leader.output());
    zookeeper.resume(0);
}

/// The session is taken up again at another one.
#[test]
fn one_server_that_hangs_deposes_nobody() {
    let (stage, mut zookeeper) = (Stage::start(), ZooKeeper::start(3));
    let (proxy, hosts) = (stage.proxy.endpoint(), zookeeper.hosts());
    let arguments = arguments(&hosts, &["--ttl", "12s"]);
    let leader = Candidate::start(&arguments, "sleep 60", &proxy);
    token_of(&leader);
    let next = Candidate::start(&arguments, "sleep 60", &proxy);
    candidacies(&zookeeper, 2);
    for server in 0..3 {
        zookeeper.pause(server);
        std::thread::sleep(Duration::from_secs(5));
        zookeeper.resume(server);
        zookeeper.wait_until_ready();
    }
    // One that is gone is no other matter.
    zookeeper.kill(0);
    std::thread::sleep(Duration::from_secs(5));
    assert!(!leader.output().contains(LOST), "{}", leader.output());
    assert!(!next.output().contains("leads"), "{}", next.output());
}
