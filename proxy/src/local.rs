//! Needs of a start on this machine: files, the rejection log, listeners. `serve` takes them, `check` tries them.

use std::io;
use std::sync::Arc;

use pgpalisade_rejection_log::{RejectionLog, RejectionLogError};
use pgpalisade_server::accounts::{Accounts, FileError, Logins};
use pgpalisade_server::certificates::Certificates;
use pgpalisade_server::listener::{ListenAddr, Listener};
use pgpalisade_server::timers::Timers;

use crate::config::{Config, HttpAddr};
use crate::console::Users;
use crate::handover::Predecessor;
use crate::http::{HttpError, HttpListener};
use crate::policy_file::{self, Loaded, PolicyFileErrors};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Serve,
    /// Everything is released, and no file is created.
    Check,
}

/// Resources, and errors for those that could not be taken. `check` names every field, so that it misses no new one.
pub(crate) struct Local {
    pub(crate) policy: Result<Loaded, PolicyFileErrors>,
    pub(crate) rejections: Result<RejectionLog, RejectionLogError>,
    pub(crate) certificates: Result<Certificates, pgpalisade_tls::FileError>,
    pub(crate) logins: Result<Logins, FileError>,
    pub(crate) users: Result<Users, FileError>,
    /// In the order of the configuration; the console's comes last.
    pub(crate) listeners: Vec<(ListenAddr, io::Result<Listener>)>,
    pub(crate) http: Result<Option<HttpListener>, HttpError>,
}

impl Local {
    /// Takes it, with listeners from the predecessor. Needs a runtime.
    pub(crate) async fn take(
        config: &Config,
        purpose: Purpose,
        predecessor: Option<&mut Predecessor>,
    ) -> Self {
        Self {
            policy: policy(config),
            rejections: rejections(config, purpose),
            certificates: certificates(config),
            logins: logins(config),
            users: console_users(config),
            listeners: listeners(config, predecessor).await,
            http: config.http.as_ref().map(HttpListener::open).transpose(),
        }
    }
}

fn policy(config: &Config) -> Result<Loaded, PolicyFileErrors> {
    let read = |path| policy_file::read_for(path, &config.takeover.authority);
    let file = config.policy.file.as_deref();
    file.map_or_else(|| Ok(Loaded::default()), read)
}

fn rejections(config: &Config, purpose: Purpose) -> Result<RejectionLog, RejectionLogError> {
    let literals = config.rejections.literals;
    match (config.rejections.file.as_deref(), purpose) {
        (Some(file), Purpose::Check) => {
            RejectionLog::try_open(file)?;
            RejectionLog::open(None, literals)
        }
        (file, _) => RejectionLog::open(file, literals),
    }
}

fn certificates(config: &Config) -> Result<Certificates, pgpalisade_tls::FileError> {
    let http = config.http.as_ref();
    let http = http.and_then(|HttpAddr { tls, .. }| tls.clone());
    let (clients, upstream) = (config.clients.tls.clone(), config.upstream.ssl.clone());
    Certificates::load(clients, http, upstream)
}

fn logins(config: &Config) -> Result<Logins, FileError> {
    let (clients, timers) = (&config.clients, Timers::of_this_runtime());
    Logins::load(&clients.auth, &clients.tls, &config.control, timers)
}

fn console_users(config: &Config) -> Result<Users, FileError> {
    let Some(console) = &config.console else {
        return Ok(Users::default());
    };
    let read = |file| Accounts::of_file(file, &config.clients.tls);
    let accounts = console.auth_file.as_deref().map(read);
    Ok(Users {
        accounts: accounts.transpose()?.map(Arc::new),
        admins: console.admins.clone(),
    })
}

async fn listeners(
    config: &Config,
    mut predecessor: Option<&mut Predecessor>,
) -> Vec<(ListenAddr, io::Result<Listener>)> {
    let console = config.console.iter().map(|console| &console.listen);
    let mut listeners = Vec::new();
    let clients = config.clients.addresses().map(|(_, address)| address);
    for address in clients.chain(console) {
        let inherited = predecessor.as_mut().and_then(|old| old.listener(address));
        let listener = match inherited {
            Some(listener) => Ok(listener),
            None => Listener::bind(address).await,
        };
        listeners.push((address.clone(), listener));
    }
    listeners
}
