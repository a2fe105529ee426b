//! Measurements of leases: how many are held, how late they are renewed, how long they have no holder.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use pgpalisade_authority::{Scope, Token};
use tokio::time::Instant;

use super::super::meters::Meters;
use super::Candidacy;

/// Maximum number of scopes whose last lease is remembered. The others are not measured.
const ENDED_MAX: usize = 1000;

/// Leases that have ended at this proxy, each with the token taken under it.
pub(in super::super) struct Vacancies {
    pub(super) meters: Meters,
    pub(super) ended: Mutex<HashMap<Scope, (Instant, Token)>>,
}

impl Vacancies {
    fn ended(&self, scope: &Scope, token: Token) {
        let mut ended = self.ended.lock();
        if ended.len() < ENDED_MAX || ended.contains_key(scope) {
            ended.insert(scope.clone(), (Instant::now(), token));
        }
    }

    /// Measures the vacancy before a token that was taken under a lease. `others_at` is the last time when another
    /// held the lease, if it was waited for.
    pub(super) fn over(&self, scope: &Scope, token: Token, others_at: Option<Instant>) {
        let ended = self.ended.lock().remove(scope);
        if let Some(since) = vacant_since(ended, token, others_at) {
            let vacant = since.elapsed();
            self.meters.lease_vacant.observe(vacant.as_secs_f64());
        }
    }
}

/// Start of the time without a leader, from the lease that ended here and the last time when another held it.
fn vacant_since(
    ended: Option<(Instant, Token)>,
    token: Token,
    others_at: Option<Instant>,
) -> Option<Instant> {
    // Unless another has led since.
    let own = ended.filter(|(_, last)| last.next() == Some(token));
    own.map(|(at, _)| at).or(others_at)
}

/// A lease that counts as held while this lives.
pub(super) struct HeldLease(Arc<Candidacy>);

impl HeldLease {
    pub(super) fn new(candidacy: Arc<Candidacy>) -> Self {
        candidacy.ticket.queues.vacancies.meters.leases.inc();
        Self(candidacy)
    }

    /// Records a renewal, or a loss, this long after the renewal was due.
    pub(super) fn renewed(&self, took: Duration) {
        let meters = &self.0.ticket.queues.vacancies.meters;
        meters.lease_renewed.observe(took.as_secs_f64());
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        let ticket = &self.0.ticket;
        ticket.queues.vacancies.meters.leases.dec();
        if let Some(mark) = self.0.taken.get() {
            ticket.queues.vacancies.ended(&ticket.scope, mark.token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(value: u64) -> Token {
        Token::new(value).unwrap()
    }

    #[test]
    fn only_time_without_any_leader_is_measured() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        // The lease that ended here, and when; the next token; the last time of another holder; start of the vacancy.
        for (ended, next, others_at, since) in [
            (Some((10, 1)), 2, None, Some(10)),
            // The store has learned of it a little later.
            (Some((10, 1)), 2, Some(11), Some(10)),
            // Another has led since.
            (Some((10, 1)), 3, None, None),
            (Some((10, 1)), 3, Some(20), Some(20)),
            (None, 2, Some(20), Some(20)),
            (None, 1, None, None),
        ] {
            let own = ended.map(|(seconds, last)| (at(seconds), token(last)));
            let found = vacant_since(own, token(next), others_at.map(at));
            assert_eq!(found, since.map(at), "{ended:?} {next} {others_at:?}");
        }
    }

    #[test]
    fn names_that_clients_make_up_fill_no_memory() {
        let vacancies = Vacancies {
            meters: Meters::default(),
            ended: Mutex::default(),
        };
        for number in 0..ENDED_MAX + 10 {
            vacancies.ended(&Scope::new(&format!("s{number}")).unwrap(), token(1));
        }
        assert_eq!(vacancies.ended.lock().len(), ENDED_MAX);
    }
}
