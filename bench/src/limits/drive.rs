//! Closed loops: sessions that send a request, read its answer, and send the next one.

use std::time::{Duration, Instant};

use pgpalisade_bench::targets::{Kind, Target};
use pgpalisade_bench::{Error, cpu};
use pgpalisade_tests::wire::Batch;
use tokio_util::sync::CancellationToken;

use crate::client::{Appetite, Client};
use crate::report::Report;

/// What a loop has done.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Done {
    /// Requests, or whatever was counted.
    pub(crate) count: u64,
    /// How long it took.
    pub(crate) took: Duration,
    /// CPU time of the target's process meanwhile. Zero for one without.
    pub(crate) used: Duration,
}

impl Done {
    /// CPU time of the process for each request.
    pub(crate) fn micros_each(&self) -> f64 {
        cpu::micros_each(self.used, self.count.max(1))
    }

    /// Requests in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

/// CPU time of a target's process so far. Zero for one without.
pub(crate) fn used_by(target: &Target) -> Result<Duration, Error> {
    target.pid().map_or(Ok(Duration::ZERO), cpu::time_of)
}

/// Does `work`, and sees what it took.
pub(crate) fn timed(
    target: &Target,
    work: impl FnOnce() -> Result<u64, Error>,
) -> Result<Done, Error> {
    let before = used_by(target)?;
    let begin = Instant::now();
    let count = work()?;
    let took = begin.elapsed();
    Ok(Done {
        count,
        took,
        used: used_by(target)?.saturating_sub(before),
    })
}

/// Adds the figure `share`: the one called `rate` as a part of that of direct, in percent.
pub(crate) fn share_of_direct(
    report: &mut Report,
    at: (&str, &str),
    rate: &str,
    share: &'static str,
) {
    let direct = report.value(Kind::Direct.name(), at.1, rate);
    let both = report.value(at.0, at.1, rate).zip(direct);
    let part = both.map(|(one, direct)| one / direct * 100.0);
    report.figure(at, share, part.as_slice(), 1);
}

/// A request that a prepared statement is asked to run: Bind, Execute, Sync.
pub(crate) fn execution(statement: &str) -> Vec<u8> {
    let batch = Batch::new().bind("", statement, &[]).execute("", 0).sync();
    batch.bytes().to_vec()
}

/// Logs so many sessions in, several at a time.
pub(crate) fn login_many(
    target: &Target,
    count: usize,
    stop: &CancellationToken,
) -> Result<Vec<Client>, Error> {
    login_many_with(target, target.options(), count, stop)
}

/// The same with other options in their startup packets.
pub(crate) fn login_many_with(
    target: &Target,
    options: Option<&str>,
    count: usize,
    stop: &CancellationToken,
) -> Result<Vec<Client>, Error> {
    const AT_A_TIME: usize = 8;
    let share = |thread: usize| count / AT_A_TIME + usize::from(thread < count % AT_A_TIME);
    let login_share = |thread| {
        let logins =
            (0..share(thread)).map(|_| Client::login_with(target, options, Appetite::Small, stop));
        logins.collect::<Result<Vec<_>, _>>()
    };
    on_threads((0..AT_A_TIME).collect(), login_share)
        .map(|shares| shares.into_iter().flatten().collect())
}

/// Prepares a statement in each session.
pub(crate) fn prepare(clients: &mut [Client], name: &str, sql: &str) -> Result<(), Error> {
    let batch = Batch::new().parse(name, sql).sync();
    for client in clients {
        client.run(batch.bytes())?.expect(0, sql)?;
    }
    Ok(())
}

/// All sessions at once send `request` again and again, for so long. Says how many were answered; each must complete
/// one statement.
pub(crate) fn loops(clients: &mut [Client], request: &[u8], time: Duration) -> Result<u64, Error> {
    let end = Instant::now() + time;
    let one = |client: &mut Client| {
        let mut count = 0_u64;
        while Instant::now() < end {
            client.run(request)?.expect(1, "a closed loop")?;
            count += 1;
        }
        Ok(count)
    };
    on_threads(clients.iter_mut().collect(), one).map(|counts| counts.into_iter().sum())
}

/// Does the same with each of `all`, each on a thread of its own. The first error counts, once all have ended.
pub(crate) fn on_threads<T: Send, R: Send>(
    all: Vec<T>,
    work: impl Fn(T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let work = &work;
    std::thread::scope(|threads| {
        let started: Vec<_> = all
            .into_iter()
            .map(|one| threads.spawn(move || work(one)))
            .collect();
        // All are waited for, whatever one of them says.
        let ended: Vec<_> = started.into_iter().map(|thread| thread.join()).collect();
        let panicked = |_| Err(Error::Round("a thread panicked".to_owned()));
        ended
            .into_iter()
            .map(|result| result.unwrap_or_else(panicked))
            .collect()
    })
}
