//! Thread that owns the file: group commit, and recovery after a disk error.

use tokio::sync::{mpsc, oneshot};

use super::fault::StepError;
use super::open::StoreFile;
use super::tables::StoreTables;
use crate::{Answer, AuthorityError};

/// Maximum steps of a transaction, so that the first caller is not kept waiting forever.
const BATCH: usize = 1024;

type Step = Box<dyn FnOnce(&mut StoreTables<'_>) -> Result<(), StepError> + Send>;

/// A step, and who waits until its transaction is durable or has failed.
pub(super) struct Job {
    step: Step,
    done: oneshot::Sender<Answer<()>>,
}

/// Sends a step to the thread, and waits until it is durable.
pub(super) async fn call<T, F>(jobs: &mpsc::Sender<Job>, step: F) -> Answer<T>
where
    T: Send + 'static,
    F: FnOnce(&mut StoreTables<'_>) -> Result<T, StepError> + Send + 'static,
{
    let (value, answer) = oneshot::channel();
    let (done, committed) = oneshot::channel();
    let step = Box::new(move |tables: &mut StoreTables<'_>| {
        // The caller may be gone; the step counts anyway.
        let _ = value.send(step(tables)?);
        Ok(())
    });
    let sent = jobs.send(Job { step, done }).await;
    sent.map_err(|_| AuthorityError::Closed)?;
    committed.await.map_err(|_| AuthorityError::Closed)??;
    answer.await.map_err(|_| AuthorityError::Closed)
}

/// Serves until every handle is gone and the queue is empty.
pub(super) fn run(mut store: StoreFile, mut queue: mpsc::Receiver<Job>) {
    while let Some(first) = queue.blocking_recv() {
        let waiting = std::iter::from_fn(|| queue.try_recv().ok());
        let batch = std::iter::once(first).chain(waiting).take(BATCH);
        let (steps, callers): (Vec<Step>, Vec<_>) = batch.map(|job| (job.step, job.done)).unzip();
        let count = steps.len();
        let mut steps = steps.into_iter();
        let committed = store.transaction(|tables| steps.try_for_each(|step| step(tables)));
        if let Err(error) = &committed {
            tracing::error!(%error, steps = count, "embedded authority: transaction failed");
        }
        for caller in callers {
            let _ = caller.send(committed.clone());
        }
    }
}
