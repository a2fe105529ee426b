//! The marks raised last, in a number that a monitoring system can bear.

use std::fmt;
use std::sync::Arc;

use pgpalisade_fence::mark_cache::{CachedMark, MarkCache};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{SCOPES_MAX, family, gauge};

#[derive(Debug)]
pub(super) struct MarkCollector(pub(super) Arc<MarkCache>);

struct Raised {
    mark: Arc<CachedMark>,
    token: u64,
    raised_at: i64,
}

impl MarkCollector {
    /// The scopes that were raised last, and the number of all.
    fn latest(&self) -> (Vec<Raised>, usize) {
        let raised = |mark: Arc<CachedMark>| {
            let (token, raised_at) = mark.raised()?;
            let token = token.get();
            Some(Raised {
                mark,
                token,
                raised_at,
            })
        };
        let mut marks: Vec<Raised> = self.0.all().into_iter().filter_map(raised).collect();
        let count = marks.len();
        if count > SCOPES_MAX {
            // Ties are ordered by name, so that scrapes agree.
            marks.select_nth_unstable_by(SCOPES_MAX, |a, b| {
                let later = b.raised_at.cmp(&a.raised_at);
                later.then_with(|| a.mark.scope().cmp(b.mark.scope()))
            });
            marks.truncate(SCOPES_MAX);
        }
        (marks, count)
    }
}

impl Collector for MarkCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (marks, count) = self.latest();
        let encoder = &mut encoder;
        let help = "Scopes that have a mark.";
        gauge(encoder, "scopes", help, count as f64)?;
        let left_out = count - marks.len();
        let help = "Scopes with a mark that have no series of their own.";
        gauge(encoder, "scopes_left_out", help, left_out as f64)?;
        if marks.is_empty() {
            return Ok(());
        }
        let gauges = |value: fn(&Raised) -> f64| {
            let gauge = move |raised: &Raised| ConstGauge::new(value(raised));
            let raised = marks.iter();
            raised.map(move |raised| (raised.mark.scope().as_str(), gauge(raised)))
        };
        let help = "The mark of a scope, as this proxy knows it.";
        let tokens = gauges(|raised| raised.token as f64);
        family(encoder, "mark", help, "scope", tokens)?;
        let help = "When the mark was raised, by the clock of the authority.";
        let name = "mark_raised_timestamp_seconds";
        let times = gauges(|raised| raised.raised_at as f64 / 1e6);
        family(encoder, name, help, "scope", times)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use pgpalisade_authority::{Mark, Scope, Token};
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn of_100_000_scopes_the_latest_are_shown_and_the_others_counted() {
        let marks = Arc::new(MarkCache::default());
        for number in 0..100_000_u32 {
            let scope = Scope::new(&format!("s{number}")).unwrap();
            let token = Token::new(u64::from(number) + 1).unwrap();
            let raised_at = i64::from(number % 50_000) * 1_000_000;
            marks.note(&scope, &Mark::new(token, raised_at, "somebody".to_owned()));
        }
        // A scope that only a policy names has no mark.
        marks.mark(&Scope::default());
        let mut registry = Registry::default();
        registry.register_collector(Box::new(MarkCollector(marks)));
        let mut text = String::new();
        let began = Instant::now();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        println!("a scrape of 100,000 scopes took {:?}", began.elapsed());
        let count = |start: &str| text.lines().filter(|line| line.starts_with(start)).count();
        assert_eq!(count("mark{"), SCOPES_MAX);
        assert_eq!(count("mark_raised_timestamp_seconds{"), SCOPES_MAX);
        for line in [
            "scopes 100000.0",
            "scopes_left_out 99000.0",
            "mark{scope=\"s99999\"} 100000.0",
            "mark{scope=\"s49999\"} 50000.0",
            "mark_raised_timestamp_seconds{scope=\"s49500\"} 49500.0",
        ] {
            assert!(text.lines().any(|there| there == line), "{line}");
        }
        assert!(!text.contains("\"s49499\"") && !text.contains("\"default\""));
    }
}
