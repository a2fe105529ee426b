//! Durations as a user writes them: `200ms`, `5s`, `1min`, `1min30s`, `2h`.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a duration. `0` needs no unit; the shortest other one is a millisecond.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let time = if text == "0" {
        Some(Duration::ZERO)
    } else {
        let time = text.parse::<SignedDuration>().ok();
        time.and_then(|time| Duration::try_from(time).ok())
    };
    let in_whole_ms = time.filter(|time| time.subsec_nanos().is_multiple_of(1_000_000));
    in_whole_ms.ok_or_else(|| {
        format!("{text:?} is not a time in whole milliseconds: write 200ms, 5s, 1min or 2h")
    })
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
        check("1.5s", Ok(1_500));
        check("5 s", Ok(5_000));
        for text in [
            "",
            "5",
            "-5s",
            "5us",
            "5d",
            "s",
            "5parsec",
            "99999999999999999999s",
            "5é",
        ] {
            check(text, Err("is not a time"));
        }
    }

    #[test]
    fn shown_as_read() {
        for text in ["0", "200ms", "5s", "1min", "2h", "1500ms"] {
            assert_eq!(parse(text).map(show).as_deref(), Ok(text));
        }
    }
}
