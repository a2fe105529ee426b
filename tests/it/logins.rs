//! Logins by each of three methods, with TLS on either leg, and each use of channel binding.

mod drivers;
mod hashing;
mod hostile;
mod kept;
mod pooled;
mod sources;
mod table;
mod who_exists;

use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::stdout;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::Authority;

use crate::tls::{ENCRYPTED, create_app, psql, refused, server_with, upstream, with_tls};

const PASSWORD: &str = "corréct 'horse'";

/// A server whose role `app` has a password, before a proxy exists.
pub(crate) struct Stage {
    pub(crate) postgres: Postgres,
    pub(crate) authority: Authority,
}

/// A proxy in front of it.
struct Way {
    proxy: Proxy,
    stage: Stage,
}

impl Stage {
    pub(crate) fn new(auth: Auth) -> Self {
        let authority = Authority::new();
        let postgres = server_with(&authority, auth, &authority.issue_local("server"));
        create_app(&postgres, auth, PASSWORD);
        Self {
            postgres,
            authority,
        }
    }

    /// Writes the users file again, with PostgreSQL's verifier of this user.
    pub(crate) fn write_users(&self, user: &str) -> String {
        let verifier = self.postgres.value(&format!(
            "SELECT rolpassword FROM pg_authid WHERE rolname = '{user}'"
        ));
        self.write_file(&format!("\"{user}\" \"{verifier}\"\n"))
    }

    fn write_file(&self, text: &str) -> String {
        let path = self.authority.path("userlist.txt");
        std::fs::write(&path, text).unwrap();
        set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path.display().to_string()
    }

    /// Options of a proxy with its own certificate and these login flags.
    fn options(&self, server: &str, flags: &[(&str, &str)]) -> Options {
        let mut options = Options::new(&self.postgres);
        options.upstream = upstream(&self.postgres, "127.0.0.1", &format!("sslmode={server}"));
        let pair = self.authority.issue_local("proxy");
        with_tls(options, "allow", &pair).flags(flags)
    }

    /// Starts a proxy with SCRAM and a users file.
    fn scram(self, server: &str) -> Way {
        let file = self.write_users("app");
        self.way(server, &[("--auth", "scram"), ("--auth-file", &file)])
    }

    fn way(self, server: &str, flags: &[(&str, &str)]) -> Way {
        Way {
            proxy: Proxy::start_with(self.options(server, flags)),
            stage: self,
        }
    }
}

impl Way {
    fn login_as(&self, user: &str, client: &str, binding: &str, password: &str) -> Output {
        let root = self.stage.authority.certificate().display().to_string();
        let root = match client {
            "verify-full" => root.as_str(),
            _ => "/none",
        };
        let variables = [
            ("PGUSER", user),
            ("PGPASSWORD", password),
            ("PGSSLMODE", client),
            ("PGSSLROOTCERT", root),
            ("PGCHANNELBINDING", binding),
        ];
        psql(&self.proxy.endpoint(), &variables, ENCRYPTED)
    }

    /// Asserts that the right password is accepted and a wrong one is not, with the given encryption of the server's
    /// leg.
    #[track_caller]
    fn works(&self, client: &str, binding: &str, encrypted: &str) {
        let output = self.login_as("app", client, binding, PASSWORD);
        let found = stdout(&output);
        assert_eq!(found, format!("{encrypted}\n"), "{client} {binding}");
        for user in ["app", "nobody"] {
            let said = refused(&self.login_as(user, client, binding, "wrong"));
            let expect = format!("FATAL:  password authentication failed for user \"{user}\"");
            assert!(said.contains(&expect), "{client} {binding}: {said}");
        }
    }

    #[track_caller]
    fn fails(&self, client: &str, binding: &str, part: &str) {
        let said = refused(&self.login_as("app", client, binding, PASSWORD));
        assert!(said.contains(part), "{client} {binding}: {said}");
    }
}
