//! Notifications to systemd, for `Type=notify`.
//!
//! Source: <https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html>

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

/// Connections are accepted, or the files were read again.
pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "cannot notify systemd"),
    }
}

/// Another process serves from now on. systemd ignores further messages of this one.
pub(crate) fn replaced_by(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Reports for ever that the main thread lives, at systemd's interval.
pub(crate) async fn feed_watchdog() {
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return std::future::pending().await;
    };
    let mut ticks = tokio::time::interval((patience / 2).max(Duration::from_millis(1)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify systemd");
    }
}
