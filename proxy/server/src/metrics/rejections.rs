//! Refusals by scope. A client cannot invent series: only scopes with a mark or in the policy have one, up to a
//! limit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use parking_lot::Mutex;
use pgpalisade_authority::Scope;
use pgpalisade_fence::mark_cache::MarkCache;
use pgpalisade_fence::rejection::{Enforcement, RejectionKind};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::ConstCounter;

use super::SCOPES_MAX;

/// Label for the scopes without series. No scope can have it.
const OTHERS: &str = "(others)";

/// Numbers of rejections by [`Enforcement`] and kind. Every session's thread adds to them.
#[derive(Debug, Default)]
struct Counters([[AtomicU64; RejectionKind::ALL.len()]; 2]);

impl Counters {
    fn count(&self, kind: RejectionKind, enforcement: Enforcement) {
        if let Some(counter) = self.of(enforcement).get(kind as usize) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn of(&self, enforcement: Enforcement) -> &[AtomicU64] {
        let [refused, observed] = &self.0;
        match enforcement {
            Enforcement::Refused => refused,
            Enforcement::Observed => observed,
        }
    }
}

#[derive(Debug)]
pub(super) struct Rejections {
    marks: Arc<MarkCache>,
    by_scope: DashMap<Scope, Counters>,
    /// Number of scopes with series, locked to keep the limit.
    scopes: Mutex<usize>,
    without: Counters,
    others: Counters,
}

impl Rejections {
    pub(super) fn new(marks: Arc<MarkCache>) -> Self {
        Self {
            marks,
            by_scope: DashMap::new(),
            scopes: Mutex::new(0),
            without: Counters::default(),
            others: Counters::default(),
        }
    }

    pub(super) fn count(
        &self,
        scope: Option<&Scope>,
        kind: RejectionKind,
        enforcement: Enforcement,
    ) {
        let Some(scope) = scope else {
            return self.without.count(kind, enforcement);
        };
        if !self.by_scope.contains_key(scope) {
            self.let_in(scope);
        }
        match self.by_scope.get(scope) {
            Some(counts) => counts.count(kind, enforcement),
            None => self.others.count(kind, enforcement),
        }
    }

    fn let_in(&self, scope: &Scope) {
        if self.marks.find(scope).is_none() {
            return;
        }
        let mut scopes = self.scopes.lock();
        if *scopes < SCOPES_MAX && !self.by_scope.contains_key(scope) {
            *scopes += 1;
            self.by_scope.insert(scope.clone(), Counters::default());
        }
    }
}

impl Collector for Rejections {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Refusals, carried out or only observed; scopes beyond the first 1000 are counted together.";
        let kind = ConstCounter::new(0_u64).metric_type();
        let mut family = encoder.encode_descriptor("rejections", help, None, kind)?;
        encode(&self.without, "", &mut family)?;
        encode(&self.others, OTHERS, &mut family)?;
        for entry in &self.by_scope {
            encode(entry.value(), entry.key().as_str(), &mut family)?;
        }
        Ok(())
    }
}

fn encode(counters: &Counters, scope: &str, family: &mut MetricEncoder<'_>) -> fmt::Result {
    for (enforced, enforcement) in [
        ("true", Enforcement::Refused),
        ("false", Enforcement::Observed),
    ] {
        for (kind, count) in RejectionKind::ALL.iter().zip(counters.of(enforcement)) {
            let count = count.load(Ordering::Relaxed);
            if count == 0 {
                continue;
            }
            let labels = [
                ("kind", kind.as_str()),
                ("sqlstate", kind.sqlstate()),
                ("scope", scope),
                ("enforced", enforced),
            ];
            ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    fn shown(rejections: &Arc<Rejections>) -> Vec<String> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Arc::clone(rejections)));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn every_kind_has_a_counter_of_its_own() {
        let counters = Counters::default();
        let enforcements = [Enforcement::Refused, Enforcement::Observed];
        let all = || {
            RejectionKind::ALL
                .iter()
                .flat_map(|kind| enforcements.map(|e| (*kind, e)))
        };
        for (times, (kind, enforcement)) in all().enumerate() {
            (0..times).for_each(|_| counters.count(kind, enforcement));
        }
        for (times, (kind, enforcement)) in all().enumerate() {
            let count = counters.of(enforcement)[kind as usize].load(Ordering::Relaxed);
            assert_eq!(count, times as u64, "{kind:?} {enforcement:?}");
        }
    }

    #[test]
    fn a_storm_of_scopes_has_so_many_series_and_no_more() {
        let marks = Arc::new(MarkCache::default());
        let rejections = Arc::new(Rejections::new(Arc::clone(&marks)));
        let stale = |scope: &Scope| {
            rejections.count(Some(scope), RejectionKind::StaleToken, Enforcement::Refused);
        };
        // A made-up scope counts among the others.
        stale(&Scope::new("made-up").unwrap());
        for number in 0..3 * SCOPES_MAX {
            let scope = Scope::new(&format!("s{number}")).unwrap();
            marks.mark(&scope);
            stale(&scope);
        }
        stale(&Scope::new("s0").unwrap());
        rejections.count(None, RejectionKind::Policy, Enforcement::Observed);
        let lines = shown(&rejections);
        assert_eq!(lines.len(), SCOPES_MAX + 2);
        assert!(!lines.iter().any(|line| line.contains("made-up")));
        let has = |line: &str| {
            assert!(lines.iter().any(|there| there == line), "{line}");
        };
        let stale = "rejections_total{kind=\"stale_token\",sqlstate=\"PF001\"";
        has(&format!("{stale},scope=\"s0\",enforced=\"true\"}} 2"));
        has(&format!(
            "{stale},scope=\"(others)\",enforced=\"true\"}} 2001"
        ));
        has("rejections_total{kind=\"policy\",sqlstate=\"PF005\",scope=\"\",enforced=\"false\"} 1");
        assert!(Scope::new(OTHERS).is_err());
    }
}
