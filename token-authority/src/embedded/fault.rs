//! Errors of a step.

use crate::{NoIncarnation, Scope};

#[derive(Debug, thiserror::Error)]
pub(super) enum StepError {
    #[error(transparent)]
    Redb(#[from] redb::Error),
    #[error("{0}")]
    Record(String),
    #[error(transparent)]
    NoIncarnation(#[from] NoIncarnation),
}

macro_rules! fault_from {
    ($($kind:ty),*) => {$(
        impl From<$kind> for StepError {
            fn from(error: $kind) -> Self {
                Self::Redb(error.into())
            }
        }
    )*};
}
fault_from!(
    redb::StorageError,
    redb::TableError,
    redb::TransactionError,
    redb::CommitError
);

pub(super) fn stored_scope(name: &str) -> Result<Scope, StepError> {
    Scope::new(name).map_err(|e| StepError::Record(format!("scope {name:?}: {e}")))
}
