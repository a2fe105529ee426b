//! Tenure of a lease: when its holder renews it, gives it back, or has lost it. Its times count from the same origin.

use std::time::Duration;

use pgpalisade_authority::{LeaseTime, Leased};

use super::RETRY;

/// Lifetime of a lease in the store without renewal.
pub(in super::super) const LIVES: Duration = Duration::from_secs(15);
/// A third of that. Two thirds are left for renewals that fail.
const RENEW_EVERY: Duration = Duration::from_secs(5);

/// The time for which a lease is held, and wanted.
#[derive(Debug)]
pub(in super::super) struct Tenure {
    demand: LeaseDemand,
    /// Begin of the last request that was granted: the lease surely lives from then on.
    asked_at: Duration,
    /// The next attempt to renew.
    renews_at: Duration,
    is_lost: bool,
}

/// Time for which the client wants a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseDemand {
    WhileHeld,
    /// The client must ask again before this time.
    Until(Duration),
    /// The client has not asked again in time, or was deposed.
    NoMore,
    /// The client has given the lease back.
    GivenBack,
}

/// The next thing to do with a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Due {
    /// Nothing before this time, unless the client asks.
    Later(Duration),
    /// A renewal, which has time until then.
    Renewal(Duration),
    /// The client does not want it any more.
    Return,
    /// It cannot be renewed any more.
    Loss,
}

impl Default for Tenure {
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}

impl Tenure {
    /// Tenure that begins with the first request.
    pub(in super::super) const fn new(asked_at: Duration) -> Self {
        Self {
            demand: LeaseDemand::WhileHeld,
            asked_at,
            renews_at: asked_at.saturating_add(RENEW_EVERY),
            is_lost: false,
        }
    }

    /// Only two thirds of its lifetime count, so that nobody else holds it by the end.
    const fn counts_until(&self) -> Duration {
        self.asked_at.saturating_add(RENEW_EVERY.saturating_mul(2))
    }

    pub(in super::super) fn due(&mut self, now: Duration) -> Due {
        if !self.is_wanted(now) {
            return Due::Return;
        }
        let until = match self.demand {
            LeaseDemand::Until(until) => until,
            _ => Duration::MAX,
        };
        if self.is_lost || now >= self.counts_until() {
            Due::Loss
        } else if now < self.renews_at {
            Due::Later(self.renews_at.min(until).min(self.counts_until()))
        } else {
            Due::Renewal(self.counts_until())
        }
    }

    /// Applies the answer to a renewal that was asked for at this time, or the lack of one.
    pub(in super::super) fn renewed(
        &mut self,
        asked_at: Duration,
        now: Duration,
        answer: Option<Leased>,
    ) {
        match answer {
            Some(Leased::Held) => {
                self.asked_at = asked_at;
                self.renews_at = asked_at + RENEW_EVERY;
            }
            Some(Leased::NotHeld) => self.is_lost = true,
            None => self.renews_at = now + RETRY,
        }
    }

    /// Lateness of a renewal.
    pub(in super::super) fn late(&self, now: Duration) -> Duration {
        now.saturating_sub(self.asked_at + RENEW_EVERY)
    }

    /// Whether the client still wants the lease. Once false, it stays false.
    fn is_wanted(&mut self, now: Duration) -> bool {
        if matches!(self.demand, LeaseDemand::Until(until) if until <= now) {
            self.demand = LeaseDemand::NoMore;
        }
        !matches!(self.demand, LeaseDemand::NoMore | LeaseDemand::GivenBack)
    }

    /// Sets the time for which the client wants the lease, from now on. Too late if the lease is being given back.
    pub(in super::super) fn want(&mut self, now: Duration, time: LeaseTime) -> Leased {
        if matches!(self.demand, LeaseDemand::NoMore | LeaseDemand::GivenBack) {
            return Leased::NotHeld;
        }
        self.demand = match time {
            LeaseTime::WhileHeld | LeaseTime::NoWait => LeaseDemand::WhileHeld,
            LeaseTime::Asked(_) => LeaseDemand::Until(now + time.duration()),
        };
        Leased::Held
    }

    /// Ends it for a holder that was deposed.
    pub(in super::super) fn end(&mut self) {
        if !self.is_given_back() {
            self.demand = LeaseDemand::NoMore;
        }
    }

    pub(in super::super) const fn give_back(&mut self) {
        self.demand = LeaseDemand::GivenBack;
    }

    /// Whether its holder has stopped working under it.
    pub(in super::super) fn is_given_back(&self) -> bool {
        self.demand == LeaseDemand::GivenBack
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: u64 = 100;

    fn tenure() -> Tenure {
        Tenure::new(Duration::from_secs(ASKED))
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(ASKED + seconds)
    }

    #[test]
    fn it_is_renewed_until_it_no_longer_counts() {
        let mut tenure = tenure();
        assert_eq!(tenure.due(at(0)), Due::Later(at(5)));
        assert_eq!(tenure.due(at(5)), Due::Renewal(at(10)));
        tenure.renewed(at(5), at(6), None);
        assert_eq!(tenure.due(at(6)), Due::Later(at(6) + RETRY));
        assert_eq!(tenure.late(at(8)), Duration::from_secs(3));
        // It lives from the request on, not from the answer.
        tenure.renewed(at(7), at(9), Some(Leased::Held));
        assert_eq!(tenure.due(at(9)), Due::Later(at(12)));
        assert_eq!(tenure.due(at(12)), Due::Renewal(at(17)));
        assert_eq!(tenure.due(at(17)), Due::Loss);
        tenure.renewed(at(12), at(13), Some(Leased::NotHeld));
        assert_eq!(tenure.due(at(13)), Due::Loss);
    }

    #[test]
    fn a_retry_is_not_waited_for_beyond_the_end() {
        let mut tenure = tenure();
        let late = at(10).saturating_sub(RETRY / 2);
        tenure.renewed(at(9), late, None);
        assert_eq!(tenure.due(late), Due::Later(at(10)));
    }

    #[test]
    fn it_ends_with_the_wish_of_its_client() {
        let mut tenure = tenure();
        assert_eq!(tenure.want(at(0), LeaseTime::Asked(3)), Leased::Held);
        assert_eq!(tenure.due(at(1)), Due::Later(at(3)));
        assert_eq!(tenure.want(at(2), LeaseTime::Asked(3)), Leased::Held);
        assert_eq!(tenure.due(at(4)), Due::Later(at(5)));
        assert_eq!(tenure.due(at(5)), Due::Return);
        // The request came too late.
        assert_eq!(tenure.want(at(5), LeaseTime::WhileHeld), Leased::NotHeld);
        assert_eq!(tenure.due(at(5)), Due::Return);
        assert!(!tenure.is_given_back());
    }

    #[test]
    fn it_can_be_given_back() {
        let mut tenure = tenure();
        assert_eq!(tenure.want(at(0), LeaseTime::NoWait), Leased::Held);
        assert_eq!(tenure.due(at(4)), Due::Later(at(5)));
        tenure.give_back();
        assert!(tenure.is_given_back());
        assert_eq!(tenure.due(at(4)), Due::Return);
        assert_eq!(tenure.want(at(4), LeaseTime::WhileHeld), Leased::NotHeld);
    }
}
