//! Thread that owns the file: group commit, and recovery after a disk error.

use tokio::sync::{mpsc, oneshot};

use super::fault::StepError;
use super::open::StoreFile;
use super::tables::StoreTables;
use crate::AuthorityError;

/// Maximum steps of a transaction, so that the first caller is not kept waiting forever.
const BATCH: usize = 1024;

pub(super) trait Job: Send {
    fn apply(&mut self, tables: &mut StoreTables<'_>) -> Result<(), StepError>;
    /// Answers once the transaction is durable or has failed.
    fn answer(self: Box<Self>, committed: Result<(), AuthorityError>);
}

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
    F: FnOnce(&mut StoreTables<'_>) -> Result<T, StepError> + Send,
{
    fn apply(&mut self, tables: &mut StoreTables<'_>) -> Result<(), StepError> {
        if let Some(step) = self.step.take() {
            self.value = Some(step(tables)?);
        }
        Ok(())
    }

    fn answer(self: Box<Self>, committed: Result<(), AuthorityError>) {
        let Self { value, reply, .. } = *self;
        // The caller may be gone; the step counts anyway.
        let _ = reply.send(committed.and_then(|()| value.ok_or(AuthorityError::Closed)));
    }
}

/// Serves until every handle is gone and the queue is empty.
pub(super) fn run(mut store: StoreFile, mut queue: mpsc::Receiver<Box<dyn Job>>) {
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
