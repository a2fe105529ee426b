//! The leader's command.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Command, ExitStatus, Stdio};

use pgpalisade_authority::{Scope, Token};
use pgpalisade_wire::startup_options;
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, wait,
};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::{ElectConfig, ElectError, Proxied};

/// libpq's options for the server: <https://www.postgresql.org/docs/current/libpq-envars.html>.
const PGOPTIONS: &str = "PGOPTIONS";

/// A running command in a separate process group. Dropping kills it.
///
/// A thread waits for its end, and for other children of this process: as process 1 of a container it inherits all
/// orphans. Tokio's process support would cost the proxy time at each pause of a worker.
#[derive(Debug)]
pub(crate) struct LeaderCommand {
    waiting: JoinHandle<u8>,
    /// The exit code, once the command has ended.
    ended: Option<u8>,
    /// Process group, with the number of the command's pid.
    group: Pid,
}

impl LeaderCommand {
    /// Starts the command of a term, with the token and the proxy's address in its environment.
    pub(crate) fn start(plan: &ElectConfig, token: Token) -> Result<Self, ElectError> {
        let Proxied { login, scope, .. } = &plan.proxied;
        let mut command = Command::new(&plan.program);
        command
            .args(&plan.arguments)
            .env("FENCING_TOKEN", token.to_string())
            .env("FENCING_SCOPE", scope.as_str())
            .env(PGOPTIONS, options(env::var_os(PGOPTIONS), scope, token))
            .stdin(input())
            .process_group(0);
        let is_set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
        for (name, value) in proxy_variables(&login.expose().config, is_set) {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let child = command.spawn().map_err(|error| ElectError::Command {
            program: plan.program.clone(),
            error,
        })?;
        let command = Pid::from_child(&child);
        Ok(Self {
            group: command,
            waiting: spawn_blocking(move || wait_for(command)),
            ended: None,
        })
    }

    /// Sends a signal to the command and what it has started. No error if they have ended.
    pub(crate) fn signal(&self, signal: Signal) {
        let _gone_already = kill_process_group(self.group, signal);
    }

    /// Whether a process of the group is left: a group keeps its number until its last process has ended.
    pub(crate) fn lives(&self) -> bool {
        if self.ended.is_some() || self.waiting.is_finished() {
            // An uncollected child counts as alive, and as process 1 only this process can collect it.
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        // A process that may not be signalled is alive, too.
        test_kill_process_group(self.group) != Err(Errno::SRCH)
    }

    pub(crate) async fn exit_code(&mut self) -> u8 {
        match self.ended {
            Some(code) => code,
            None => {
                let code = (&mut self.waiting).await.unwrap_or(1);
                *self.ended.insert(code)
            }
        }
    }

    pub(crate) async fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.exit_code().await;
    }
}

impl Drop for LeaderCommand {
    fn drop(&mut self) {
        if self.ended.is_none() && !self.waiting.is_finished() {
            self.signal(Signal::KILL);
        }
    }
}

/// The command's standard input. A terminal would stop a background process group that reads it.
fn input() -> Stdio {
    if std::io::stdin().is_terminal() {
        Stdio::null()
    } else {
        Stdio::inherit()
    }
}

/// Options for the command's sessions. Given ones stay; the token comes last, so that it counts. A token of the scope
/// "default" is a bare number, so that SQL can cast it.
fn options(given: Option<OsString>, scope: &Scope, token: Token) -> OsString {
    let mut options = given.unwrap_or_default();
    let settings = startup_options::from_switches(options.as_encoded_bytes());
    let is_bare =
        *scope == Scope::default() && startup_options::last(&settings, "fencing.scope").is_none();
    if !options.is_empty() {
        options.push(" ");
    }
    let declared = if is_bare {
        format!("-c fencing.scope={scope} -c fencing.token={token}")
    } else {
        format!("-c fencing.token={scope}={token}")
    };
    options.push(declared);
    options
}

/// libpq's variables for the way to the proxy; `None` removes one. A user or database that is set stays.
fn proxy_variables(
    proxied: &Config,
    is_set: impl Fn(&str) -> bool,
) -> Vec<(&'static str, Option<OsString>)> {
    let host = proxied.get_hosts().first().map(|host| match host {
        Host::Tcp(name) => OsString::from(name),
        Host::Unix(directory) => directory.clone().into_os_string(),
    });
    let address = proxied.get_hostaddrs().first().map(ToString::to_string);
    let port = proxied.get_ports().first().map(ToString::to_string);
    let mut variables = vec![
        ("PGHOST", host),
        // libpq connects to it instead of PGHOST.
        ("PGHOSTADDR", address.map(OsString::from)),
        ("PGPORT", port.map(OsString::from)),
    ];
    for (name, value) in [
        ("PGUSER", proxied.get_user()),
        ("PGDATABASE", proxied.get_dbname()),
    ] {
        if value.is_some() && !is_set(name) {
            variables.push((name, value.map(OsString::from)));
        }
    }
    variables
}

/// Waits for the end of the command, and collects all other children that end before it. Returns the code as a shell
/// does: the command's own, or 128 plus the number of the ending signal.
fn wait_for(command: Pid) -> u8 {
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if ended == command => {
                return exit_code(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return 1,
        }
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let by_signal = || status.signal().map(|signal| 128 + signal);
    let code = status.code().or_else(by_signal);
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_were_given_stay() {
        let (scope, token) = ("jobs".parse().unwrap(), Token::new(34).unwrap());
        let made = |given: Option<&str>| options(given.map(OsString::from), &scope, token);
        assert_eq!(made(None), "-c fencing.token=jobs=34");
        assert_eq!(made(Some("")), "-c fencing.token=jobs=34");
        assert_eq!(
            made(Some("-c statement_timeout=5s")),
            "-c statement_timeout=5s -c fencing.token=jobs=34"
        );
    }

    #[test]
    fn a_token_of_the_default_scope_is_a_number() {
        let (scope, token) = (Scope::default(), Token::new(34).unwrap());
        let made = |given: Option<&str>| options(given.map(OsString::from), &scope, token);
        assert_eq!(made(None), "-c fencing.scope=default -c fencing.token=34");
        assert_eq!(
            made(Some("-c fencing.scope=jobs")),
            "-c fencing.scope=jobs -c fencing.token=default=34"
        );
    }

    #[test]
    fn the_command_goes_where_its_lock_was_taken() {
        let made = |dsn: &str, set: &[&str]| {
            let variables = proxy_variables(&dsn.parse().unwrap(), |name| set.contains(&name));
            let shown = variables.into_iter().map(|(name, value)| {
                let value = value.map(|value| value.into_string().unwrap());
                format!("{name}={}", value.as_deref().unwrap_or("-"))
            });
            shown.collect::<Vec<_>>().join(" ")
        };
        let url = "postgres://app:secret@db:6432/shop";
        assert_eq!(
            made(url, &[]),
            "PGHOST=db PGHOSTADDR=- PGPORT=6432 PGUSER=app PGDATABASE=shop"
        );
        assert_eq!(
            made(url, &["PGHOST", "PGPORT", "PGUSER", "PGDATABASE"]),
            "PGHOST=db PGHOSTADDR=- PGPORT=6432"
        );
        assert_eq!(
            made("host=/run hostaddr=::1 port=1", &[]),
            "PGHOST=/run PGHOSTADDR=::1 PGPORT=1"
        );
    }

    #[test]
    fn codes_are_those_of_a_shell() {
        for (raw, code) in [(0, 0), (7 << 8, 7), (15, 143), (9, 137), (255 << 8, 255)] {
            assert_eq!(exit_code(ExitStatus::from_raw(raw)), code);
        }
    }
}
