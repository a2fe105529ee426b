//! Leases in memory, for stores of one proxy: when it stops, the sessions of all holders end.

use std::collections::HashMap;
use std::time::Instant;

use parking_lot::Mutex;

use crate::{LeaseId, LeaseStep, Leased, Scope};

/// Holder of each scope's lease, and its end.
#[derive(Debug, Default)]
pub(crate) struct Leases(Mutex<HashMap<Scope, (LeaseId, Instant)>>);

impl Leases {
    pub(crate) fn step(&self, scope: &Scope, holder: LeaseId, step: LeaseStep) -> Leased {
        let now = Instant::now();
        let mut held = self.0.lock();
        let other = match held.get(scope) {
            Some((own, _)) if *own == holder => false,
            Some((_, until)) => *until > now || !matches!(step, LeaseStep::Acquire(_)),
            None => !matches!(step, LeaseStep::Acquire(_)),
        };
        match step.time() {
            _ if other => Leased::NotHeld,
            Some(time) => {
                // Expired leases of unused scopes do not accumulate.
                held.retain(|_, (_, until)| *until > now);
                held.insert(scope.clone(), (holder, now + time));
                Leased::Held
            }
            None => {
                held.remove(scope);
                Leased::NotHeld
            }
        }
    }
}
