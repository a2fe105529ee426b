//! A time on the command line.

use std::time::Duration;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    let now = Timestamp::now();
    if let Some(ago) = ago(text) {
        return now
            .checked_sub(ago)
            .map_err(|_| format!("{text} is too long ago"));
    }
    let moment = text.parse::<Timestamp>().or_else(|_| {
        let written = text.parse::<DateTime>()?;
        Ok::<_, jiff::Error>(written.to_zoned(TimeZone::UTC)?.timestamp())
    });
    moment.map_err(|_| {
        "write 2026-11-21T03:00:00Z, 2026-11-21 (midnight, UTC), or how long ago: 90min, 24h, 7d"
            .to_owned()
    })
}

fn ago(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let seconds: u64 = match unit {
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return None,
    };
    Some(Duration::from_secs(
        number.parse::<u64>().ok()?.checked_mul(seconds)?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        for (text, expect) in [
            ("2026-11-21T03:00:00Z", "2026-11-21T03:00:00Z"),
            ("2026-11-21T03:00:00.5+02:00", "2026-11-21T01:00:00.5Z"),
            ("2026-11-21 03:00", "2026-11-21T03:00:00Z"),
            ("2026-11-21", "2026-11-21T00:00:00Z"),
        ] {
            assert_eq!(moment(text), Ok(expect.parse().unwrap()), "{text}");
        }
        for (text, seconds) in [
            ("90min", 5_400),
            ("10m", 600),
            ("2h", 7_200),
            ("7d", 604_800),
        ] {
            let then = moment(text).unwrap();
            let ago = Timestamp::now().duration_since(then);
            assert!((seconds..seconds + 5).contains(&ago.as_secs()), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "7",
            "7w",
            "99999999999999999999d",
            "2026-13-01",
        ] {
            assert!(moment(text).is_err(), "{text}");
        }
        assert!(moment("99999999999d").unwrap_err().contains("too long ago"));
    }
}
