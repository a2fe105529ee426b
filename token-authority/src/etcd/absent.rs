//! A build without the feature `etcd`: addresses of etcd are read, and connecting is an error.

mod options;
mod reported;

use std::sync::Arc;
use std::time::Duration;

pub use options::{DEFAULT_PREFIX, Options};
pub use reported::CandidateStatus;

use crate::{Answer, Authority, Election, Leased, OpenError, Token};

fn absent<T>() -> Result<T, OpenError> {
    let why = "this pgpalisade was built without etcd; build it with the feature \"etcd\", which is on by default";
    Err(OpenError::Unusable(why.to_owned()))
}

/// A store that cannot be opened, so there is none.
#[derive(Debug, Clone, Copy)]
pub enum Etcd {}

impl Etcd {
    /// Always fails.
    pub async fn open(_: Options) -> Result<Arc<dyn Authority>, OpenError> {
        absent()
    }

    /// Always fails.
    pub async fn find(_: Options) -> Result<Option<Self>, OpenError> {
        absent()
    }

    /// Never called.
    pub fn authority(&self) -> &dyn Authority {
        match *self {}
    }

    /// Never called.
    pub async fn leader(&self, _: &str) -> Answer<Option<Token>> {
        match *self {}
    }
}

/// A candidate that cannot be registered, so there is none.
#[derive(Debug)]
pub enum ElectionCandidate {}

impl ElectionCandidate {
    /// Always fails.
    pub async fn register(_: &Options, _: &str, _: Duration) -> Result<Self, OpenError> {
        absent()
    }

    /// Never called.
    pub async fn join(&self, _: &str) -> Result<Token, OpenError> {
        match *self {}
    }

    /// Never called.
    pub async fn join_alone(&self, _: &str) -> Result<Option<Token>, OpenError> {
        match *self {}
    }

    /// Never called.
    pub async fn status(&self) -> Result<CandidateStatus, OpenError> {
        match *self {}
    }

    /// Never called.
    pub async fn renew(&self) -> Result<Leased, OpenError> {
        match *self {}
    }

    /// Never called.
    pub async fn resign(&self) -> Result<(), OpenError> {
        match *self {}
    }
}

/// Always fails.
pub fn follow_election(_: &Options, _: &str, _: &str) -> Result<Box<dyn Election>, OpenError> {
    absent()
}
