//! A timer that is precise to microseconds. tokio's own are precise to a millisecond, which is longer than what is
//! measured.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::io::unix::AsyncFd;

/// One timer of the kernel, which wakes the runtime as a socket does.
#[derive(Debug)]
pub(super) struct Alarm {
    timer: AsyncFd<OwnedFd>,
}

impl Alarm {
    /// Needs a runtime around it.
    #[expect(
        deprecated,
        reason = "deprecated for descriptors that may be closed behind its back, which an OwnedFd is not; what \
                  replaces it is unsafe"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let timer = AsyncFd::new(timer)?;
        Ok(Self { timer })
    }

    /// Returns at that moment, or at once where it has passed.
    pub(super) async fn until(&self, moment: Instant) -> io::Result<()> {
        let wait = moment.saturating_duration_since(Instant::now());
        // Zero would stop the timer.
        if wait.is_zero() {
            return Ok(());
        }
        self.set(wait)?;
        loop {
            let mut ready = self.timer.readable().await?;
            let expired = ready.try_io(|timer| {
                let mut times = [0; size_of::<u64>()];
                Ok(rustix::io::read(timer, &mut times)?)
            });
            // Otherwise what woke us was an earlier setting.
            if let Ok(expired) = expired {
                return expired.map(drop);
            }
        }
    }

    fn set(&self, wait: Duration) -> io::Result<()> {
        let never = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let setting = Itimerspec {
            it_interval: never,
            it_value: Timespec::try_from(wait).map_err(io::Error::other)?,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &setting)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_rings_after_its_time_and_not_before() {
        let alarm = Alarm::new().unwrap();
        for wait in [0, 50, 300, 2_000] {
            let moment = Instant::now() + Duration::from_micros(wait);
            alarm.until(moment).await.unwrap();
            assert!(Instant::now() >= moment, "{wait} us");
        }
        // One that was given up, and rang when nobody waited, does not ring in the next. A busy machine may be late by
        // tens of milliseconds, but not by so many.
        let given_up = tokio::time::timeout(
            Duration::from_millis(5),
            alarm.until(Instant::now() + Duration::from_millis(500)),
        );
        assert!(given_up.await.is_err());
        tokio::time::sleep(Duration::from_millis(520)).await;
        let moment = Instant::now() + Duration::from_millis(30);
        alarm.until(moment).await.unwrap();
        assert!(Instant::now() >= moment);
    }
}
