//! The thread that owns the file: group commit, and starting over after an error of the disk.

use tokio::sync::{mpsc, oneshot};

use super::open::Store;
use super::tables::{Fault, Tables};
use crate::AuthorityError;

/// Steps in one transaction at most, so that the first caller is not kept waiting for ever.
const BATCH: usize = 1024;

/// One step of one caller.
pub(super) trait Job: Send {
    /// Takes the step inside the transaction.
    fn apply(&mut self, tables: &mut Tables<'_>) -> Result<(), Fault>;
    /// Answers, once the transaction is durable or has failed.
    fn answer(self: Box<Self>, committed: Result<(), AuthorityError>);
}

/// A step with its result and the caller who waits for it.
pub(super) struct Call<T, F> {
    step: Option<F>,
    value: Option<T>,
    reply: oneshot::Sender<Result<T, AuthorityError>>,
}

impl<T, F> Call<T, F> {
    pub(super) fn new(step: F, reply: oneshot::Sender<Result<T, AuthorityError>>) -> Self {
        Self {
            step: Some(step),
            value: None,
            reply,
        }
    }
}

impl<T, F> Job for Call<T, F>
where
    T: Send,
    F: FnOnce(&mut Tables<'_>) -> Result<T, Fault> + Send,
{
    fn apply(&mut self, tables: &mut Tables<'_>) -> Result<(), Fault> {
        if let Some(step) = self.step.take() {
            self.value = Some(step(tables)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), AuthorityError>) {
        let Self { value, reply, .. } = *self;
        // The caller may have gone; the step is taken all the same.
        let _ = reply.send(committed.and_then(|()| value.ok_or(AuthorityError::Closed)));
    }
}

/// Serves until every handle is gone and the queue is empty.
pub(super) fn run(mut store: Store, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    let mut batch: Vec<Box<dyn Job>> = Vec::new();
    while let Some(first) = queue.blocking_recv() {
        batch.push(first);
        while batch.len() < BATCH {
            match queue.try_recv() {
                Ok(next) => batch.push(next),
                Err(_) => break,
            }
        }
        let committed =
            store.transaction(|tables| batch.iter_mut().try_for_each(|job| job.apply(tables)));
        if let Err(error) = &committed {
            tracing::error!(%error, steps = batch.len(), "embedded authority: transaction failed");
        }
        for job in batch.drain(..) {
            job.answer(committed.clone());
        }
    }
}
