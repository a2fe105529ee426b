//! Reasons why there is no server connection.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use pgpalisade_fence::rejection::Rejection;
use pgpalisade_logins::ServerLoginError;
use pgpalisade_session::endings::put_survived;
use pgpalisade_wire::WireError;
use pgpalisade_wire::backend;
use pgpalisade_wire::encode::{self, ErrorFields, ErrorResponse, Severity};
use pgpalisade_wire::header::HEADER_LEN;

pub(crate) const SEE_LOG: &str = "See the log of pgpalisade.";

/// Classes of errors that say nothing of the login: insufficient resources, operator intervention.
const TEMPORARY: [&[u8]; 2] = [b"53", b"57"];

const NO_CREDENTIALS: &str = "Use auth = \"scram\" or auth = \"password\", or pool = \"session\".";

const UNASKED: &str = "PostgreSQL asked for nothing: it may have let in the proxy, by its system user or certificate.";
const OTHER_ROLE: &str = "Log in as another role, or let pg_hba.conf ask this one for a password.";

const NO_PLACE: &str = "All connections of backends.max were in use.";

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum OpenError {
    /// The server's ErrorResponse.
    #[error("PostgreSQL refused the login")]
    Refused(Bytes),
    #[error("PostgreSQL closed the connection during the login")]
    Closed,
    #[error("no primary of the cluster is known")]
    NoPrimary(Arc<str>),
    #[error("cannot connect to PostgreSQL at {0}")]
    Unreachable(String),
    #[error("cannot connect to PostgreSQL at {0} with TLS")]
    NoTls(String),
    /// Another server became the primary meanwhile.
    #[error("{}", .0.message)]
    Deposed(Box<Rejection>),
    #[error("pgpalisade cannot log in to PostgreSQL as user \"{0}\"")]
    NotLetIn(String, ServerLoginError),
    #[error(
        "PostgreSQL asks user \"{0}\" to log in, but pgpalisade knows no password or key of it"
    )]
    NoCredentials(String),
    #[error("role \"{0}\" is the proxy's own, and PostgreSQL has not authenticated the client")]
    OwnRole(String),
    #[error("no server connection was free in time")]
    NoPlace,
    #[error("no server connection was opened in time")]
    NotOpened,
    #[error("a setting of this session could not be set in another server connection")]
    NotSet,
    #[error("PostgreSQL did not complete the login in time")]
    Unanswered,
    #[error("{0}")]
    Protocol(#[from] WireError),
    #[error("the connection failed: {0}")]
    Io(Arc<io::Error>),
}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// What an error adds to its text.
pub(crate) struct Advice<'a> {
    pub(crate) sqlstate: &'static str,
    pub(crate) detail: Cow<'a, str>,
    pub(crate) hint: &'static str,
}

impl OpenError {
    /// Whether PostgreSQL does not admit the login, rather than nobody at the moment.
    pub(crate) fn is_about_login(&self) -> bool {
        match self {
            Self::NotLetIn(..) | Self::NoCredentials(_) | Self::OwnRole(_) => true,
            Self::Refused(response) => {
                let body = response.get(HEADER_LEN..).unwrap_or_default();
                let sqlstate = backend::error_field(body, b'C').unwrap_or_default();
                !TEMPORARY.iter().any(|class| sqlstate.starts_with(class))
            }
            _ => false,
        }
    }

    /// Whether it is news for the log: of the others, the log knows already, or the client is told at its login.
    pub(crate) fn is_to_log(&self) -> bool {
        match self {
            Self::Refused(_) => !self.is_about_login(),
            Self::Closed | Self::Unanswered | Self::Protocol(_) | Self::Io(_) => true,
            _ => false,
        }
    }

    /// The error with PostgreSQL's own words.
    pub(crate) fn in_words(&self) -> String {
        let Self::Refused(response) = self else {
            return self.to_string();
        };
        let body = response.get(HEADER_LEN..).unwrap_or_default();
        let said = backend::error_field(body, b'M').unwrap_or_default();
        format!("{self}: {}", String::from_utf8_lossy(said))
    }

    /// Appends the error for a client.
    pub(crate) fn put(&self, severity: Severity, out: &mut BytesMut) {
        match (self, severity) {
            (Self::Refused(response), Severity::Fatal) => out.extend_from_slice(response),
            (Self::Refused(response), Severity::Error) => {
                put_survived(response.get(HEADER_LEN..).unwrap_or_default(), "", "", out);
            }
            (Self::Deposed(rejection), Severity::Error) => {
                let rejection = Rejection::clone(rejection).sparing_the_client();
                rejection.encode(severity, out);
            }
            (Self::Deposed(rejection), Severity::Fatal) => rejection.encode(severity, out),
            _ => {
                let Advice {
                    sqlstate,
                    detail,
                    hint,
                } = self.advice();
                let fields = ErrorFields {
                    severity,
                    sqlstate,
                    message: &encode::with_code(sqlstate, &self.to_string()),
                    detail: &detail,
                    hint,
                };
                encode::put(out, &ErrorResponse::from(&fields));
            }
        }
    }

    pub(crate) fn advice(&self) -> Advice<'_> {
        let advice = |sqlstate, detail, hint| Advice {
            sqlstate,
            detail: Cow::Borrowed(detail),
            hint,
        };
        match self {
            Self::Refused(_)
            | Self::Closed
            | Self::Unanswered
            | Self::Unreachable(_)
            | Self::Io(_) => advice("08006", "", ""),
            Self::NoTls(_) => advice("08006", SEE_LOG, ""),
            Self::NoPrimary(why) => advice("57P03", why, "Try again after the failover."),
            Self::Deposed(rejection) => advice(rejection.kind.sqlstate(), "", ""),
            Self::NoPlace => advice(
                "53300",
                NO_PLACE,
                "Raise backends.max, or shorten transactions.",
            ),
            Self::NotOpened => advice(
                "53300",
                "Opening one took longer than backends.wait.",
                "Raise backends.wait.",
            ),
            Self::NotSet => advice(
                "58000",
                "PostgreSQL refused a SET that this client had run.",
                "Connect again.",
            ),
            Self::NotLetIn(_, why) => Advice {
                sqlstate: "28000",
                detail: Cow::Owned(why.to_string()),
                hint: remedy(why),
            },
            Self::NoCredentials(_) => advice("28000", "", NO_CREDENTIALS),
            Self::OwnRole(_) => advice("28000", UNASKED, OTHER_ROLE),
            Self::Protocol(_) => advice("08P01", "", ""),
        }
    }
}

/// Advice if PostgreSQL requires another method than the proxy can use.
const fn remedy(error: &ServerLoginError) -> &'static str {
    match error {
        ServerLoginError::NeedsPassword(_) => {
            "Use scram-sha-256 in pg_hba.conf, and set the password again if it is stored as md5. Or use auth = \
                \"password\"."
        }
        ServerLoginError::Readable => {
            "Use TLS to PostgreSQL (sslmode in upstream), or scram-sha-256 in pg_hba.conf."
        }
        ServerLoginError::Method(_) => "Use auth = \"relay\".",
        _ => "",
    }
}
