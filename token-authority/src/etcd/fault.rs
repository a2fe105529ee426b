//! Errors of calls to etcd, and what to do about them.

use std::error::Error as _;

use etcd_client::Error;

use crate::AuthorityError;

/// What helps if etcd's database is full.
pub(super) const MAKE_ROOM: &str = "compact and defragment etcd, then run: etcdctl alarm disarm";

#[derive(Debug, Clone)]
pub(super) struct EtcdFault {
    pub(super) kind: FaultKind,
    pub(super) text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// Another endpoint, or the same one later, may answer.
    Unavailable,
    /// The requested revision has been compacted: start again at a newer one.
    Compacted,
    Denied,
    Full,
    /// etcd reports corrupt data, or a record is invalid.
    Damaged,
    /// The server is not etcd 3, or does not accept the request.
    Foreign,
}

impl EtcdFault {
    pub(super) fn new(kind: FaultKind, text: impl Into<String>) -> Self {
        Self {
            kind,
            text: text.into(),
        }
    }

    pub(super) fn unavailable(text: impl Into<String>) -> Self {
        Self::new(FaultKind::Unavailable, text)
    }

    pub(super) fn damaged(text: impl Into<String>) -> Self {
        Self::new(FaultKind::Damaged, text)
    }
}

/// Why a stream or a read of several answers has ended.
pub(super) enum Ended {
    /// etcd failed. The next attempt continues.
    Broken(EtcdFault),
    /// This store is not accepted any more, or damaged.
    Over(AuthorityError),
}

impl From<EtcdFault> for Ended {
    fn from(fault: EtcdFault) -> Self {
        Self::Broken(fault)
    }
}

impl From<AuthorityError> for Ended {
    fn from(error: AuthorityError) -> Self {
        match error {
            AuthorityError::Unavailable(why) => Self::Broken(EtcdFault::unavailable(why)),
            error => Self::Over(error),
        }
    }
}

impl From<Ended> for AuthorityError {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Broken(fault) => fault.into(),
            Ended::Over(error) => error,
        }
    }
}

impl From<Error> for EtcdFault {
    fn from(error: Error) -> Self {
        let text = chain(&error);
        let kind = match &error {
            Error::GRpcStatus(status) => kind_of(i32::from(status.code()), status.message()),
            Error::InvalidArgs(_) | Error::InvalidUri(_) | Error::InvalidMetadataValue(_) => {
                FaultKind::Foreign
            }
            _ => FaultKind::Unavailable,
        };
        Self { kind, text }
    }
}

impl From<EtcdFault> for AuthorityError {
    fn from(EtcdFault { kind, text }: EtcdFault) -> Self {
        match kind {
            FaultKind::Unavailable
            | FaultKind::Compacted
            | FaultKind::Denied
            | FaultKind::Foreign => Self::Unavailable(text),
            FaultKind::Full => Self::Storage(format!("{text}; {MAKE_ROOM}")),
            FaultKind::Damaged => Self::Damaged(text),
        }
    }
}

/// Remedy by the codes of gRPC (<https://grpc.io/docs/guides/status-codes/>) and their meaning in etcd
/// (`api/v3rpc/rpctypes/error.go` in its sources).
fn kind_of(code: i32, message: &str) -> FaultKind {
    const INVALID_ARGUMENT: i32 = 3;
    const PERMISSION_DENIED: i32 = 7;
    const RESOURCE_EXHAUSTED: i32 = 8;
    const FAILED_PRECONDITION: i32 = 9;
    const OUT_OF_RANGE: i32 = 11;
    const UNIMPLEMENTED: i32 = 12;
    const DATA_LOSS: i32 = 15;
    match code {
        OUT_OF_RANGE if message.contains("compacted") => FaultKind::Compacted,
        // This member does not have the revision yet; another one has.
        OUT_OF_RANGE => FaultKind::Unavailable,
        RESOURCE_EXHAUSTED if message.contains("space exceeded") => FaultKind::Full,
        // Users or roles changed after our login: the next attempt logs in again.
        INVALID_ARGUMENT if message.contains("auth store is old") => FaultKind::Unavailable,
        INVALID_ARGUMENT | FAILED_PRECONDITION if message.contains("authentication") => {
            FaultKind::Denied
        }
        INVALID_ARGUMENT if message.contains("user name is empty") => FaultKind::Denied,
        PERMISSION_DENIED => FaultKind::Denied,
        INVALID_ARGUMENT | FAILED_PRECONDITION | UNIMPLEMENTED => FaultKind::Foreign,
        DATA_LOSS => FaultKind::Damaged,
        _ => FaultKind::Unavailable,
    }
}

/// The message and its causes, without repetition.
fn chain(error: &Error) -> String {
    let mut text = match error {
        Error::GRpcStatus(status) if !status.message().is_empty() => status.message().to_owned(),
        Error::GRpcStatus(status) => status.code().description().to_owned(),
        other => other.to_string(),
    };
    let mut cause = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => error.source(),
        _ => None,
    };
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        for (code, message, kind) in [
            (
                11,
                "etcdserver: mvcc: required revision has been compacted",
                FaultKind::Compacted,
            ),
            (
                11,
                "etcdserver: mvcc: required revision is a future revision",
                FaultKind::Unavailable,
            ),
            (
                8,
                "etcdserver: mvcc: database space exceeded",
                FaultKind::Full,
            ),
            (8, "etcdserver: too many requests", FaultKind::Unavailable),
            (
                3,
                "etcdserver: authentication failed, invalid user ID or password",
                FaultKind::Denied,
            ),
            (
                9,
                "etcdserver: authentication is not enabled",
                FaultKind::Denied,
            ),
            (3, "etcdserver: user name is empty", FaultKind::Denied),
            (
                3,
                "etcdserver: revision of auth store is old",
                FaultKind::Unavailable,
            ),
            (7, "etcdserver: permission denied", FaultKind::Denied),
            (
                3,
                "etcdserver: too many operations in txn request",
                FaultKind::Foreign,
            ),
            (12, "unknown service etcdserverpb.KV", FaultKind::Foreign),
            (15, "etcdserver: corrupt cluster", FaultKind::Damaged),
            (14, "etcdserver: no leader", FaultKind::Unavailable),
            (4, "", FaultKind::Unavailable),
        ] {
            assert_eq!(kind_of(code, message), kind, "{code} {message}");
        }
    }
}
