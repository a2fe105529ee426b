//! Storms of similar lines: the first ones are written, the others counted.
//!
//! A client can cause a line with every refused statement.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one callsite that are written in [`WINDOW`].
const FIRST: u64 = 50;

/// After this time counting restarts.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

/// Recent counts by callsite, shared by clones.
#[derive(Debug, Clone, Default)]
pub(super) struct Storms(Arc<DashMap<Identifier, Storm>>);

#[derive(Debug)]
struct Storm {
    since: Instant,
    seen: u64,
    of: &'static Metadata<'static>,
}

impl Storms {
    /// Logs how many lines were left out, of callsites that have counted for `age`, and forgets these.
    pub(super) fn tell(&self, age: Duration) {
        let mut over = Vec::new();
        // Logged afterwards, because logging needs the locks held here.
        self.0.retain(|_, storm| {
            let is_over = storm.since.elapsed() >= age;
            if is_over && storm.seen > FIRST {
                over.push((storm.seen - FIRST, storm.of));
            }
            !is_over
        });
        for (left_out, of) in over {
            tracing::warn!(
                left_out,
                of = of.name(),
                "more lines of this kind came in {WINDOW:?} than are written"
            );
        }
    }
}

impl<S: Subscriber> Layer<S> for Storms {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let of = event.metadata();
        // A level above the default asks for everything.
        if *of.level() > Level::INFO {
            return true;
        }
        let mut storm = self.0.entry(of.callsite()).or_insert_with(|| Storm {
            since: Instant::now(),
            seen: 0,
            of,
        });
        storm.seen += 1;
        storm.seen <= FIRST
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::Mutex;

    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Captured(Arc<Mutex<Vec<u8>>>);

    impl Write for Captured {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_first_of_a_kind_are_written_and_the_others_counted() {
        // With a single subscriber, tracing asks only the first thread at a callsite, which may be another test's.
        let _second = tracing::Dispatch::new(tracing_subscriber::registry());
        let (captured, storms) = (Captured::default(), Storms::default());
        let writer = captured.clone();
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let subscriber = tracing_subscriber::registry()
            .with(layer)
            .with(storms.clone());
        tracing::subscriber::with_default(subscriber, || {
            for _ in 0..FIRST + 17 {
                tracing::warn!("often");
            }
            for _ in 0..FIRST {
                tracing::warn!("seldom");
            }
            storms.tell(WINDOW);
            tracing::warn!("another line");
            storms.tell(Duration::ZERO);
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count() as u64;
        assert_eq!(count("often"), FIRST, "{text}");
        assert_eq!(count("seldom"), FIRST, "{text}");
        assert_eq!(count("another line"), 1, "{text}");
        assert_eq!(count("left_out=17"), 1, "{text}");
        assert_eq!(count("left_out="), 1, "{text}");
        assert!(text.contains("storm.rs:"), "{text}");
    }
}
