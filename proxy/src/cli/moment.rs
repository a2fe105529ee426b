//! A time on the command line.

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

pub(super) fn moment(text: &str) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(ago) = text.parse::<Span>() {
        // Days of UTC have 24 hours. "7d ago" and "-7d" are negative, and mean no other time than "7d".
        let then = Timestamp::now().to_zoned(TimeZone::UTC);
        let then = then.checked_sub(ago.abs());
        return then
            .map(|then| then.timestamp())
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
            ("1h30m", 5_400),
            ("7d ago", 604_800),
            ("-1h", 3_600),
        ] {
            let then = moment(text).unwrap();
            let ago = Timestamp::now().duration_since(then);
            assert!((seconds..seconds + 5).contains(&ago.as_secs()), "{text}");
        }
        for text in [
            "",
            "yesterday",
            "7",
            "7x",
            "99999999999999999999d",
            "2026-13-01",
        ] {
            assert!(moment(text).is_err(), "{text}");
        }
        assert!(moment("6000000d").unwrap_err().contains("too long ago"));
    }
}
