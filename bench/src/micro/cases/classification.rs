//! Text to verdict.

use std::hint::black_box;

use pgpalisade_policies::{Class, Verdict, VerdictCache, Weight, classify, scan, weigh};

use super::{Case, INSERT, Made, POINT_SELECT, SAFE, repeat};

/// What a client sends that writes its values into the text.
const CONSTANTS: &str = "SELECT id FROM job WHERE kind = 'mail' AND id = 00000001 ORDER BY x";

/// Texts in turn, so that not all of them are in the processor's cache.
const TEXTS: usize = 4_096;

pub(super) fn cases() -> Vec<Case> {
    let mut cases = cached_cases();
    cases.extend(classified_cases());
    cases
}

/// What is known of a text without the grammar.
fn cached_cases() -> Vec<Case> {
    vec![
        Case::new("scan-select", "scan a SELECT of 52 bytes", || {
            Ok(repeat(|| {
                black_box(scan::needs_parse(black_box(POINT_SELECT.as_bytes())));
            }))
        }),
        Case::new(
            "cached",
            "the cached verdict of a text of 100 bytes",
            || {
                let mut cache = VerdictCache::new(16 << 20);
                Ok(repeat(move || {
                    black_box(cache.get_or_classify(black_box(INSERT.as_bytes()), SAFE));
                }))
            },
        )
        .goal(150.0),
        Case::new(
            "cached-4096",
            "the same, of 4,096 texts in turn",
            cached_of_many,
        ),
        Case::new(
            "cached-constants",
            "the cached verdict of a text of 67 bytes with two constants",
            || {
                let mut cache = VerdictCache::new(16 << 20);
                Ok(repeat(move || {
                    black_box(cache.get_or_classify(black_box(CONSTANTS.as_bytes()), SAFE));
                }))
            },
        ),
        Case::new(
            "cached-other-constants",
            "the same, with another number each time",
            cached_with_other_constants,
        ),
        Case::new(
            "cache-miss",
            "look for a text with two constants that is not there",
            || {
                let mut cache = VerdictCache::new(16 << 20);
                Ok(repeat(move || {
                    black_box(cache.find(black_box(CONSTANTS.as_bytes()), SAFE));
                }))
            },
        ),
    ]
}

/// What the grammar costs.
fn classified_cases() -> Vec<Case> {
    vec![
        Case::new(
            "classify-select",
            "classify a SELECT by primary key, 52 bytes",
            || classified(POINT_SELECT.to_owned(), Class::Read),
        )
        .goal(20_000.0),
        Case::new("classify-insert", "classify an INSERT, 100 bytes", || {
            classified(INSERT.to_owned(), Class::Write)
        }),
        Case::new(
            "classify-backslash",
            "the same with a backslash in a string: the text is read twice",
            || classified(INSERT.replace("$3", r"'C:\temp'"), Class::Write),
        ),
        Case::new(
            "classify-light-most",
            "classify the most work that is done in the session's thread",
            || {
                let text = heaviest(LIGHT_ITEMS);
                match weigh(text.as_bytes()) {
                    Weight::Light => classified(text, Class::Read),
                    Weight::Heavy => Err("the text is not light".into()),
                }
            },
        )
        .large(),
        Case::new(
            "classify-most",
            "classify the most work that is done at all, in a thread of its own",
            || classified(heaviest_of_all(), Class::Read),
        )
        .large(),
    ]
}

fn cached_of_many() -> Made {
    let texts: Vec<String> = (0..TEXTS)
        .map(|number| {
            format!("{POINT_SELECT} AND bid_{number:04} = $2 AND filler <> '.................'")
        })
        .collect();
    let mut cache = VerdictCache::new(16 << 20);
    for text in &texts {
        cache.get_or_classify(text.as_bytes(), SAFE);
    }
    let mut next = 0;
    Ok(repeat(move || {
        let text = texts.get(next % TEXTS).map_or("", String::as_str);
        next += 1;
        black_box(cache.get_or_classify(black_box(text.as_bytes()), SAFE));
    }))
}

/// Counts the number in the text up, so that no text comes twice.
fn cached_with_other_constants() -> Made {
    let mut cache = VerdictCache::new(16 << 20);
    let mut text = CONSTANTS.as_bytes().to_vec();
    let Some(begin) = CONSTANTS.find("00000001") else {
        return Err("there is no number in the text".into());
    };
    let digits = begin..begin + 8;
    Ok(repeat(move || {
        black_box(cache.get_or_classify(black_box(&text), SAFE));
        for digit in text.get_mut(digits.clone()).into_iter().flatten().rev() {
            match *digit {
                b'9' => *digit = b'0',
                _ => {
                    *digit += 1;
                    break;
                }
            }
        }
    }))
}

/// A text that is understood, so that it is not the refusal to look at it that is measured.
fn classified(text: String, class: Class) -> Made {
    let verdict: Verdict = classify(text.as_bytes(), SAFE);
    if verdict.kind() == "unparsed" || verdict.class() != class {
        return Err(format!("the text is classified as {verdict:?}").into());
    }
    Ok(repeat(move || {
        black_box(classify(black_box(text.as_bytes()), SAFE));
    }))
}

/// Items of two tokens in a text of nearly as many tokens as are classified in the session's thread, and as are
/// classified at all.
const LIGHT_ITEMS: usize = 2_040;
const ITEMS: usize = 32_760;

/// Of all that two tokens can say, a star in a list takes longest: it is a column, a list of fields and a field. And
/// with one backslash in a string the whole text is read twice.
fn heaviest(items: usize) -> String {
    format!(r"select e'\\'{}", ",*".repeat(items))
}

pub(crate) fn heaviest_of_all() -> String {
    heaviest(ITEMS)
}
