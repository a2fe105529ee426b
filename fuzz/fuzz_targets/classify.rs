//! SQL texts from any client.
//!
//! A read has no writing effect, and a text that PostgreSQL's grammar refuses is a write. The cache agrees with the
//! classifier, also for texts with other digits and letters in their constants. A text that the scan passes has no
//! statement to follow.

#![cfg_attr(feature = "libfuzzer", no_main)]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use pgpalisade_policies::scan::needs_parse;
use pgpalisade_policies::{
    Class, Control, Effects, MAX_PARSED_INLINE, Statement, Tables, TextEncoding, VerdictCache,
    classify,
};

const SAFE: TextEncoding = TextEncoding::Utf8;

#[cfg(not(feature = "libfuzzer"))]
const fn main() {}

fuzz_target!(|data: &[u8]| {
    // Longer texts are only slower.
    if data.len() > MAX_PARSED_INLINE {
        return;
    }
    let safe = classify(data, SAFE);
    let not_safe = classify(data, TextEncoding::Other);
    assert!(not_safe.class() >= safe.class());
    if data.is_ascii() {
        assert_eq!(safe, not_safe);
    }
    for statement in &safe.statements {
        look(statement);
    }

    let mut cache = VerdictCache::new(1 << 20);
    cache.keep(data, SAFE, &Arc::new(safe.clone()));
    for text in [data, &with_other_digits(data), &with_other_strings(data)] {
        // A verdict too large for the cache was not kept.
        if let Some(found) = cache.find(text, SAFE) {
            assert_eq!(*found, classify(text, SAFE));
        }
    }
    assert!(cache.stats().bytes <= cache.capacity());

    if safe.kind() == "unparsed" {
        assert_eq!(safe.class(), Class::Write);
        assert!(
            safe.statements
                .iter()
                .all(|one| !one.effects.writes.are_named())
        );
    } else if !needs_parse(data) {
        assert!(!safe.has_controls() && !safe.commits_midway());
    }
});

fn look(statement: &Statement) {
    let effects = &statement.effects;
    assert_eq!(effects.class == Class::Write, statement.why.is_some());
    look_at(effects);
    if effects.class == Class::Read {
        assert!(!statement.may_commit_inside);
    }
    for control in &statement.controls {
        if let Control::Prepare { effects, .. } = control {
            look_at(effects);
        }
    }
}

fn look_at(effects: &Effects) {
    if effects.class == Class::Read {
        assert_eq!(effects.writes, Tables::none());
        // LOCK TABLE in ACCESS SHARE MODE has one.
        let category: Option<&str> = effects.category.map(Into::into);
        assert!(matches!(category, None | Some("lock")), "{category:?}");
    }
    for tables in [&effects.writes, &effects.reads] {
        assert!(tables.names().is_sorted_by(|a, b| a < b));
    }
}

fn with_other_digits(text: &[u8]) -> Vec<u8> {
    let other = |byte: &u8| match byte {
        b'0'..=b'9' => b'9' - (byte - b'0'),
        _ => *byte,
    };
    text.iter().map(other).collect()
}

/// Replaces letters between quotes by the next ones. Some quotes may not be real ones.
fn with_other_strings(text: &[u8]) -> Vec<u8> {
    let mut quotes = 0;
    let other = |byte: &u8| {
        quotes += usize::from(*byte == b'\'');
        match byte {
            b'a'..=b'y' if quotes % 2 == 1 => byte + 1,
            _ => *byte,
        }
    };
    text.iter().map(other).collect()
}
