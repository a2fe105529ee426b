//! Durations as a user writes them: `200ms`, `5s`, `1min`, `1min30s`, `2h`.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a duration. `0` needs no unit; the shortest other one is a millisecond. An overlong one is
/// [`Duration::MAX`], which the bounds of every key refuse.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    const NANOS_OF_MS: u32 = 1_000_000;
    let text = text.trim();
    if text.is_empty() {
        return Err(String::from("is empty: write a time such as 5s or 200ms"));
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{text:?} needs a unit: write {text}s, {text}ms or {text}min"
        ));
    }
    let Ok(time) = text.parse::<SignedDuration>() else {
        return match is_long(text) {
            true => Ok(Duration::MAX),
            false => Err(format!(
                "{text:?} is not a time: write 200ms, 5s, 1min or 2h"
            )),
        };
    };
    let time: Duration = time
        .try_into()
        .map_err(|_| format!("{text:?} is negative: write a time such as 5s"))?;
    match time.subsec_nanos() % NANOS_OF_MS {
        0 => Ok(time),
        _ => Err(format!(
            "{text:?} has a part of a millisecond: write whole ones, such as 1ms"
        )),
    }
}

fn is_long(text: &str) -> bool {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    unit.len() < text.len() && ["ms", "s", "m", "min", "h"].contains(&unit)
}

pub(crate) fn show(time: Duration) -> String {
    let ms = time.as_millis();
    match ms {
        0 => String::from("0"),
        _ if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        _ if ms.is_multiple_of(60_000) => format!("{}min", ms / 60_000),
        _ if ms.is_multiple_of(1_000) => format!("{}s", ms / 1_000),
        _ => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<u64, &str>) {
        match (parse(text), expect) {
            (Ok(time), Ok(ms)) => assert_eq!(time, Duration::from_millis(ms), "{text}"),
            (Err(message), Err(part)) => assert!(message.contains(part), "{text}: {message}"),
            (got, _) => assert!(got.is_err() == expect.is_err(), "{text}: {got:?}"),
        }
    }

    #[test]
    fn times() {
        check("0", Ok(0));
        check("0s", Ok(0));
        check("200ms", Ok(200));
        check("5s", Ok(5_000));
        check("1min", Ok(60_000));
        check("1m", Ok(60_000));
        check("1min30s", Ok(90_000));
        check("1min 30s", Ok(90_000));
        check("2h", Ok(7_200_000));
        check("5", Err("needs a unit: write 5s"));
        check("-5s", Err("is negative"));
        check("1.5s", Ok(1_500));
        check("5 s", Ok(5_000));
        check("5us", Err("a part of a millisecond"));
        check("5d", Err("is not a time"));
        check("s", Err("is not a time"));
        check("5parsec", Err("is not a time"));
        check("", Err("is empty"));
        assert_eq!(parse("99999999999999999999s"), Ok(Duration::MAX));
        assert_eq!(parse("18446744073709551615h"), Ok(Duration::MAX));
        check("5é", Err("is not a time"));
    }

    #[test]
    fn shown_as_read() {
        for text in ["0", "200ms", "5s", "1min", "2h", "1500ms"] {
            assert_eq!(parse(text).map(show).as_deref(), Ok(text));
        }
    }
}
