//! A simulation of the pool in virtual time, with a driver, servers, and clients that come, go, die, pin and fail.
//! Each seed decides all limits, delays and faults.
//!
//! `PGPALISADE_POOL_SEED=7` prints the steps of one seed, `PGPALISADE_POOL_SEEDS=100000` plays more.

mod guards;
mod many_logins;
mod promises;
mod random;
mod splitmix;
mod tables;
mod weather;
mod world;

use std::time::{Duration, Instant};

use guards::{Guard, Without};
use promises::Broken;
use world::{Delivery, World};

const SEEDS: u64 = 300;
/// Seeds that a run without a guard may take to break a promise.
const SEEDS_WITHOUT: u64 = 3000;

fn play(seed: u64, out: Option<&Without>, tell: impl FnMut(Duration, &Delivery)) -> World {
    let mut world = World::new(seed, out);
    world.play(tell);
    world
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn the_pool_keeps_its_promises() {
    if let Some(seed) = number("PGPALISADE_POOL_SEED") {
        let played = play(seed, None, |at, delivery| println!("{at:?} {delivery:?}"));
        let backends: Vec<_> = played.pool.backends().collect();
        let (limits, max) = (&played.draw.limits, played.draw.max);
        println!("{max} places, {limits:?}\n{backends:#?}");
        assert_eq!(played.broken, None, "seed {seed}");
        return;
    }
    let (begun, mut broken) = (Instant::now(), Vec::new());
    let (mut steps, mut lent) = (0, 0);
    let seeds = number("PGPALISADE_POOL_SEEDS").unwrap_or(SEEDS);
    for seed in 0..seeds {
        let played = play(seed, None, |_, _| ());
        (steps, lent) = (steps + played.steps, lent + played.lent);
        broken.extend(played.broken.map(|promise| (seed, promise)));
        if broken.len() > 20 {
            break;
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
    let each = steps * 1000 / u64::try_from(begun.elapsed().as_millis()).unwrap().max(1);
    println!("{seeds} seeds, {steps} steps, {each} a second, {lent} backends lent");
    assert!(lent > seeds * 100, "{lent} are too few to show anything");
}

/// Each guard has a seed on record. If that shows nothing any more, another is looked for.
#[test]
fn without_a_guard_a_promise_is_broken() {
    let mut is_true = true;
    for without in Guard::ALL {
        let is_found = |seed: &u64| -> bool {
            let broken: Option<Broken> = play(*seed, Some(without), |_, _| ()).broken;
            broken.is_some()
        };
        let recorded = Some(without.seed).filter(is_found);
        let found = recorded.or_else(|| (0..SEEDS_WITHOUT).find(is_found));
        println!("{:?}: {}, seed {found:?}", without.guard, without.breaks);
        is_true &= recorded.is_some();
    }
    assert!(is_true, "the seeds of guards.rs are those above");
}
