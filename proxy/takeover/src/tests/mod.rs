//! A simulation of takeovers: the machines, the authority's rule, and a virtual PostgreSQL. Each seed decides all
//! delays and faults: lost, late and repeated requests, lost answers, crashed proxies, reused process ids, backends
//! that commit before they end, policies that only observe, servers that are replaced or copied, a store that goes
//! away, is restored or repaired.
//!
//! `PGPALISADE_TAKEOVER_SEED=7` prints the steps of one seed, `PGPALISADE_TAKEOVER_SEEDS=100000` plays more.

mod calls;
mod guards;
mod leases;
mod pooled;
mod promises;
mod random;
mod requests;
mod servers;
mod sessions;
#[path = "../../../pool/src/tests/splitmix.rs"]
mod splitmix;
mod store;
mod weather;
mod world;

use std::time::{Duration, Instant};

use pgpalisade_authority::{Claim, Token};

use super::{
    barrier, barriers, control_error, epoch, error, lease, machine, plan, reaper, witness,
};
use guards::{Guard, Without};
use pooled::Flaw;
use promises::{Broken, NOT_IN_TIME, STAYS_REGISTERED};
use world::{Delivery, World};

const SEEDS: u64 = 1000;
/// Seeds that a run without a guard may take to break a promise.
const SEEDS_WITHOUT: u64 = 3_000;
/// Time with faults, and without.
const STORM: Duration = Duration::from_secs(15);
const CALM: Duration = Duration::from_secs(8);
/// Pause before a client declares again.
const AGAIN: Duration = Duration::from_secs(1);

/// A run that has ended.
struct Played {
    steps: u64,
    granted: u64,
    broken: Option<Broken>,
}

fn play(seed: u64, out: Option<&Without>, tell: impl FnMut(Duration, &Delivery)) -> Played {
    let is_storm_only = out.is_some_and(|out| out.breaks != NOT_IN_TIME);
    let world = World::new(seed, out);
    if is_storm_only {
        storm(world, tell).played()
    } else {
        storm_and_calm(world, tell)
    }
}

fn play_pooled(seed: u64, out: Option<Flaw>, tell: impl FnMut(Duration, &Delivery)) -> Played {
    storm_and_calm(World::new(seed, None).with_pools(out), tell)
}

fn storm(mut world: World, tell: impl FnMut(Duration, &Delivery)) -> World {
    world.run(STORM, tell);
    world
}

fn storm_and_calm(world: World, mut tell: impl FnMut(Duration, &Delivery)) -> Played {
    let mut world = storm(world, &mut tell);
    world.is_calm = true;
    world.limits.calm();
    if !world.policy.is_enforced() {
        world.reload();
    }
    world.settle();
    world.run(CALM, &mut tell);
    if world.broken.is_none() {
        rest(&mut world, &mut tell);
    }
    world.played()
}

impl World {
    const fn played(&self) -> Played {
        Played {
            steps: self.steps,
            granted: self.truth.granted,
            broken: self.broken,
        }
    }
}

/// Without faults a takeover succeeds in time, and no record of an ended session is left.
fn rest(world: &mut World, tell: &mut impl FnMut(Duration, &Delivery)) {
    let (scope, cluster) = (world.scopes[0].clone(), world.authority.now.cluster);
    let last = world
        .authority
        .now
        .rank(&scope)
        .map_or(0, |rank| rank.token.get());
    let claim = Claim::Token(Token::new(last + 1).unwrap());
    world.limits.pids += 1;
    let session = cluster.and_then(|cluster| world.connect_to(0, cluster));
    let Some(session) = session else {
        return world.breaks(NOT_IN_TIME);
    };
    // The cache may not know of a repair yet. If it refuses, the next attempt succeeds.
    for _ in 0..2 {
        world.declare(session, 0, claim);
        let is_asked = world.sessions.get(&session).is_some_and(|s| s.is_busy);
        world.run(calls::WITHIN + AGAIN, &mut *tell);
        if is_asked {
            break;
        }
    }
    let bound = world.sessions.get(&session).and_then(|s| s.bound().next());
    if bound.is_none_or(|(_, rank)| Some(rank.token) != claim.token()) {
        return world.breaks(NOT_IN_TIME);
    }
    world.run(CALM, &mut *tell);
    let registered = world.authority.now.sessions.keys();
    let processes = &world.servers.processes;
    let mut registered = registered.filter(|(scope, _)| !scope.is_epoch());
    if registered.any(|(_, backend)| !processes.contains_key(backend)) {
        world.breaks(STAYS_REGISTERED);
    }
    world.pools_rest();
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Plays one seed of the environment, or many.
fn promises_are_kept(play: impl Fn(u64, &mut dyn FnMut(Duration, &Delivery)) -> Played) {
    if let Some(seed) = number("PGPALISADE_TAKEOVER_SEED") {
        let played = play(seed, &mut |at, delivery| println!("{at:?} {delivery:?}"));
        assert_eq!(played.broken, None, "seed {seed}");
        return;
    }
    let (begun, mut broken) = (Instant::now(), Vec::new());
    let (mut steps, mut granted) = (0, 0);
    let seeds = number("PGPALISADE_TAKEOVER_SEEDS").unwrap_or(SEEDS);
    for seed in 0..seeds {
        let played = play(seed, &mut |_, _| ());
        (steps, granted) = (steps + played.steps, granted + played.granted);
        broken.extend(played.broken.map(|promise| (seed, promise)));
        if broken.len() > 20 {
            break;
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
    let each = steps * 1000 / u64::try_from(begun.elapsed().as_millis()).unwrap().max(1);
    println!("{seeds} seeds, {steps} steps, {each} a second, {granted} tokens granted");
    assert!(
        granted > seeds * 5,
        "{granted} tokens are too few to show anything"
    );
}

#[test]
fn takeovers_keep_their_promises() {
    promises_are_kept(|seed, tell| play(seed, None, tell));
}

#[test]
fn takeovers_keep_their_promises_to_clients_that_share_sessions() {
    promises_are_kept(|seed, tell| play_pooled(seed, None, tell));
}

#[test]
fn without_a_rule_of_the_pool_s_driver_a_promise_is_broken() {
    for (flaw, promise) in Flaw::ALL {
        let seed = (0..SEEDS)
            .find(|seed| play_pooled(*seed, Some(flaw), |_, _| ()).broken == Some(promise));
        println!("{flaw:?}: {promise}, seed {seed:?}");
        assert!(seed.is_some(), "{flaw:?}");
    }
}

/// A row of the table in `docs/verification.md`: what a run without the guard breaks, the seed, and its steps.
fn row(without: &Without, seed: u64) -> Option<String> {
    let played = play(seed, Some(without), |_, _| ());
    let (text, steps) = (without.text, played.steps);
    Some(format!(
        "| {text} | {} | {seed} | {steps} |",
        played.broken?
    ))
}

/// The table has a seed for each guard. If that shows nothing any more, another is looked for.
#[test]
fn without_a_guard_a_promise_is_broken() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/verification.md");
    let page = std::fs::read_to_string(page).unwrap();
    let mut is_true = true;
    for without in Guard::ALL {
        let beginning = format!("| {} | ", without.text);
        let on_page = page.lines().find(|line| line.starts_with(&beginning));
        let cells = on_page.unwrap_or_default().split(" | ");
        let seed = cells.skip(2).find_map(|cell| cell.parse().ok());
        let found = seed.and_then(|seed| row(without, seed));
        let found = found.or_else(|| (0..SEEDS_WITHOUT).find_map(|seed| row(without, seed)));
        let found = found.unwrap_or_else(|| format!("{beginning}nothing |"));
        is_true &= on_page == Some(&found);
        println!("{found}");
    }
    assert!(
        is_true,
        "the table of docs/verification.md is the one above"
    );
}
