//! What the user sees while it runs.

/// One line on standard error.
pub(crate) fn say(measurement: &str, text: &str) {
    eprintln!("limits: {measurement}: {text}");
}
