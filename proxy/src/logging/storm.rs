//! Storms of similar lines: the first ones are written, the others counted.
//!
//! A client can cause a line with every refused statement.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

/// Lines of one kind that are written in [`WINDOW`].
const FIRST: u64 = 50;

/// After this time counting restarts.
const WINDOW: Duration = Duration::from_secs(10);

/// Recent counts by callsite, shared by clones.
#[derive(Debug, Clone, Default)]
pub(super) struct Storms(Arc<DashMap<StormKey, Storm>>);

/// A callsite, and a hash of the field `kind` if its events have several. Both come from our own code, so their
/// number is bounded.
type StormKey = (Identifier, u64);

#[derive(Debug)]
struct Storm {
    since: Instant,
    seen: u64,
    of: &'static Metadata<'static>,
    /// The line in readable form.
    like: String,
}

impl Storms {
    /// Whether a line is among the first of its kind.
    fn takes(
        &self,
        key: StormKey,
        of: &'static Metadata<'static>,
        like: impl FnOnce() -> String,
    ) -> bool {
        let mut storm = self.0.entry(key).or_insert_with(|| Storm {
            since: Instant::now(),
            seen: 0,
            of,
            like: like(),
        });
        storm.seen += 1;
        storm.seen <= FIRST
    }

    /// Reports how many lines were left out of each storm.
    pub(super) fn tell_all(&self) {
        self.tell(Duration::ZERO);
    }

    /// As [`Self::tell_all`], for storms older than [`WINDOW`].
    pub(super) fn tell_old(&self) {
        self.tell(WINDOW);
    }

    fn tell(&self, age: Duration) {
        let mut over = Vec::new();
        self.0.retain(|_, storm| {
            let is_over = storm.since.elapsed() >= age;
            if is_over && storm.seen > FIRST {
                over.push((storm.seen - FIRST, storm.of.target(), storm.like.clone()));
            }
            !is_over
        });
        for (left_out, target, like) in over {
            tracing::warn!(
                left_out,
                of = target,
                like,
                "more lines of this kind came in {WINDOW:?} than are written"
            );
        }
    }
}

/// Reads the fields that distinguish events of one place.
#[derive(Default)]
struct LineFields {
    message: String,
    kind: Option<String>,
}

impl Visit for LineFields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "kind" => self.kind = Some(value.to_owned()),
            "message" => self.message = value.to_owned(),
            _ => {}
        }
    }
}

impl<S: Subscriber> Layer<S> for Storms {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        let metadata = event.metadata();
        // A level above the default asks for everything.
        if *metadata.level() > Level::INFO {
            return true;
        }
        let mut kind = LineFields::default();
        if metadata.fields().field("kind").is_some() {
            event.record(&mut kind);
        }
        let mut hasher = DefaultHasher::new();
        kind.kind.hash(&mut hasher);
        let key = (metadata.callsite(), hasher.finish());
        self.takes(key, metadata, || {
            event.record(&mut kind);
            match &kind.kind {
                Some(of) => format!("{} ({of})", kind.message),
                None => kind.message.clone(),
            }
        })
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
            for kind in ["often", "seldom"] {
                let times = if kind == "often" { FIRST + 17 } else { FIRST };
                for _ in 0..times {
                    tracing::warn!(kind, "refused");
                }
            }
            storms.tell_old();
            tracing::warn!("another line");
            storms.tell_all();
        });
        let text = String::from_utf8(captured.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count() as u64;
        assert_eq!(count("refused kind=\"often\""), FIRST, "{text}");
        assert_eq!(count("refused kind=\"seldom\""), FIRST, "{text}");
        assert_eq!(count("another line"), 1, "{text}");
        assert_eq!(count("left_out=17"), 1, "{text}");
        assert_eq!(count("left_out="), 1, "{text}");
        assert!(text.contains("refused (often)"), "{text}");
    }
}
