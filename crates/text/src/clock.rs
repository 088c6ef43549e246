//! The template function `strftime_now`: the date, as templates write it into system prompts.
//!
//! UTC, English names, and the directives that dates are made of; another directive is an error, not an empty text.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
];

/// Seconds since 1970-01-01 UTC; 0 if the clock stands before that.
pub(crate) fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}

/// The moment `seconds` in the format of C's `strftime`, or the directive that is not known.
pub(crate) fn strftime(format: &str, seconds: u64) -> Result<String, String> {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (month_name, day_name) = (MONTHS[month - 1], DAYS[(days % 7) as usize]);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(char) = chars.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year % 100)),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{:02}", (hour + 11) % 12 + 1)),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('B') => out.push_str(month_name),
            Some('b') => out.push_str(&month_name[..3]),
            Some('A') => out.push_str(day_name),
            Some('a') => out.push_str(&day_name[..3]),
            Some('F') => out.push_str(&format!("{year}-{month:02}-{day:02}")),
            Some('T') => out.push_str(&format!("{hour:02}:{minute:02}:{second:02}")),
            Some('%') => out.push('%'),
            Some(other) => return Err(format!("%{other}")),
            None => return Err("%".to_owned()),
        }
    }
    Ok(out)
}

/// Year, month and day of a day number, day 0 being 1970-01-01.
///
/// Counted in 400-year eras of years that begin in March, so that leap days end a year. Source: H. Hinnant,
/// "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, usize, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (
        era * 400 + year + u64::from(month <= 2),
        month as usize,
        day,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_moments() {
        let all = "%a %A %d %b %B %Y %y %m %F %T %H:%M:%S %I %p 100%%";
        assert_eq!(
            strftime(all, 0).unwrap(),
            "Thu Thursday 01 Jan January 1970 70 01 1970-01-01 00:00:00 00:00:00 12 AM 100%"
        );
        // 2024-02-29 13:05:09 UTC.
        assert_eq!(
            strftime(all, 1_709_211_909).unwrap(),
            "Thu Thursday 29 Feb February 2024 24 02 2024-02-29 13:05:09 13:05:09 01 PM 100%"
        );
        assert_eq!(strftime("%d %b %Y", 1_721_952_000).unwrap(), "26 Jul 2024");
        assert_eq!(strftime("%F", 4_107_542_399).unwrap(), "2100-02-28");
        assert_eq!(strftime("%F", 4_107_542_400).unwrap(), "2100-03-01");
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let mut before = civil(0);
        for days in 1..200_000 {
            let (year, month, day) = civil(days);
            let next = day == before.2 + 1 && (year, month) == (before.0, before.1);
            let next_month = day == 1 && (year, month) == (before.0, before.1 + 1);
            let next_year =
                (month, day) == (1, 1) && year == before.0 + 1 && (before.1, before.2) == (12, 31);
            assert!(
                next || next_month || next_year,
                "{before:?} then {:?}",
                (year, month, day)
            );
            before = (year, month, day);
        }
    }

    #[test]
    fn unknown_directives_are_named() {
        assert_eq!(strftime("%Q", 0), Err("%Q".to_owned()));
        assert_eq!(strftime("%", 0), Err("%".to_owned()));
    }
}
