//! What a start needs of this machine: files and listeners. `check` reads the files, too.

use std::sync::Arc;

use pgpalisade_server::accounts::{Accounts, FileError, Logins, OwnRoles};
use pgpalisade_server::certificates::Certificates;
use pgpalisade_server::listener::Listener;
use pgpalisade_server::timers::Timers;

use crate::config::{Config, HttpAddr};
use crate::console::Users;
use crate::handover::Predecessor;
use crate::policy_file::{self, Loaded, PolicyFileErrors};

pub(crate) fn policy(config: &Config) -> Result<Loaded, PolicyFileErrors> {
    let read = |path| policy_file::read_for(path, &config.takeover.authority);
    let file = config.policy.file.as_deref();
    file.map_or_else(|| Ok(Loaded::default()), read)
}

pub(crate) fn certificates(config: &Config) -> Result<Certificates, pgpalisade_tls::FileError> {
    let http = config.http.as_ref();
    let http = http.and_then(|HttpAddr { tls, .. }| tls.clone());
    let (clients, upstream) = (config.clients.tls.clone(), config.upstream.ssl.clone());
    Certificates::load(clients, http, upstream)
}

/// Needs a runtime.
pub(crate) fn logins(config: &Config) -> Result<Logins, FileError> {
    let (clients, timers) = (&config.clients, Timers::of_this_runtime());
    let own = OwnRoles::new(config.own_roles(), &config.upstream.ssl);
    Logins::load(&clients.auth, &clients.tls, &config.control, own, timers)
}

pub(crate) fn console_users(config: &Config) -> Result<Users, FileError> {
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

/// Listeners for clients in the order of the configuration, then the console's; those of the predecessor, if it has
/// them. Needs a runtime.
pub(crate) fn listeners(
    config: &Config,
    mut predecessor: Option<&mut Predecessor>,
) -> Result<Vec<Listener>, String> {
    let console = config.console.iter().map(|console| &console.listen);
    let mut listeners = Vec::new();
    let clients = config.clients.addresses().map(|(_, address)| address);
    for address in clients.chain(console) {
        let inherited = predecessor.as_mut().and_then(|old| old.listener(address));
        let listener = match inherited {
            Some(listener) => Ok(listener),
            None => Listener::bind(address),
        };
        let listener = listener.map_err(|error| format!("cannot listen on {address}: {error}"));
        listeners.push(listener?);
    }
    Ok(listeners)
}
