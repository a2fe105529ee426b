//! How a leader with a numberless lock takes the next token, and records it.

use rand::Rng;
use rand::rngs::StdRng;

use super::declaration::{Accepted, Declarer};
use super::history::{Event, now};
use super::leader::pause;

pub(super) struct Taken {
    pub(super) token: u64,
    pub(super) accepted: Accepted,
}

pub(super) fn take(candidate: &Declarer<'_>, random: &mut StdRng) -> Option<Taken> {
    let Declarer {
        scope,
        database,
        ref reach,
        ..
    } = *candidate;
    let after = if random.random_bool(0.2) {
        None
    } else {
        Some(mark(candidate, random)?)
    };
    // Confirms its lock. All candidates do, and others take meanwhile.
    pause(random, 0..80);
    let claim = after.map_or("next".to_owned(), |mark| format!("after:{mark}"));
    let (door, id, at) = (reach.door(random), candidate.next_id(), now());
    reach.recorder.record(&Event::Take {
        id,
        at,
        scope: scope.to_owned(),
        after,
    });
    let value = format!("default=1,{scope}={claim}");
    let taken = door.declare(database, &value, random, &|_| {}, &|_| {});
    let taken = taken.ok().and_then(|mut client| {
        let shown = client.query("SHOW fencing.token");
        let (_, token) = shown.value()?.rsplit_once('=')?;
        Some((token.parse().ok()?, client))
    });
    reach.recorder.record(&Event::Taken {
        id,
        token: taken.as_ref().map(|(token, _)| *token),
    });
    let (token, client) = taken?;
    let taker = Declarer {
        token,
        ..*candidate
    };
    taker.record_given(id, at, door.proxy);
    let accepted = Accepted { client, id };
    Some(Taken { token, accepted })
}

/// 0 without a mark.
fn mark(candidate: &Declarer<'_>, random: &mut StdRng) -> Option<u64> {
    let own = [("fencing.scope", candidate.scope)];
    let door = candidate.reach.door(random);
    let mut client = door.login(candidate.database, &own).ok()?;
    match client.query("SHOW fencing.mark").value()? {
        "" => Some(0),
        mark => mark.parse().ok(),
    }
}
