//! Relayed logins, with TLS on neither, either or both legs.

use pgpalisade_test_servers::postgres::{Auth, Postgres};
use pgpalisade_test_servers::programs::stdout;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::{Authority, Pair};

use super::{ENCRYPTED, create_app, psql, refused, server_with, upstream, with_tls};

const PASSWORD: &str = "corréct 'horse'";

/// A server whose role `app` has a password, and a proxy, with TLS on either leg or not.
struct Way {
    proxy: Proxy,
    postgres: Postgres,
    authority: Authority,
}

/// Certificate that the proxy presents.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Own,
    Servers,
}

impl Way {
    fn new(auth: Auth, server: &str, shown: Shown) -> Self {
        let authority = Authority::new();
        let of_server = authority.issue_local("server");
        let postgres = server_with(&authority, auth, &of_server);
        create_app(&postgres, auth, PASSWORD);
        let pair: Pair = match shown {
            Shown::Own => authority.issue_local("proxy"),
            Shown::Servers => of_server,
        };
        let mut options = Options::new(&postgres);
        options.upstream = upstream(&postgres, "127.0.0.1", &format!("sslmode={server}"));
        Self {
            proxy: Proxy::start_with(with_tls(options, "allow", &pair)),
            postgres,
            authority,
        }
    }

    fn login(&self, client: &str, binding: &str, password: &str) -> std::process::Output {
        let root = self.authority.certificate().display().to_string();
        let variables = [
            ("PGUSER", "app"),
            ("PGPASSWORD", password),
            ("PGSSLMODE", client),
            (
                "PGSSLROOTCERT",
                if client == "verify-full" {
                    &root
                } else {
                    "/none"
                },
            ),
            ("PGCHANNELBINDING", binding),
        ];
        psql(&self.proxy.endpoint(), &variables, ENCRYPTED)
    }

    #[track_caller]
    fn works(&self, client: &str, binding: &str, encrypted: &str) {
        let output = self.login(client, binding, PASSWORD);
        assert_eq!(
            stdout(&output),
            format!("{encrypted}\n"),
            "{client} {binding}"
        );
        let said = refused(&self.login(client, binding, "wrong"));
        assert!(
            said.contains("password authentication failed"),
            "{client} {binding}: {said}"
        );
    }

    #[track_caller]
    fn fails(&self, client: &str, binding: &str, part: &str) {
        let said = refused(&self.login(client, binding, PASSWORD));
        assert!(said.contains(part), "{client} {binding}: {said}");
    }
}

#[test]
fn passwords_and_hashes_have_no_binding() {
    for auth in [Auth::Password, Auth::Md5] {
        for (server, encrypted) in [("disable", "f"), ("require", "t")] {
            let way = Way::new(auth, server, Shown::Own);
            for client in ["disable", "verify-full"] {
                way.works(client, "prefer", encrypted);
            }
        }
    }
}

#[test]
fn scram_without_tls_to_the_server() {
    let way = Way::new(Auth::Scram, "disable", Shown::Own);
    for client in ["disable", "verify-full"] {
        for binding in ["disable", "prefer"] {
            way.works(client, binding, "f");
        }
    }
    // In libpq's own words: neither PostgreSQL nor the proxy offers it.
    way.fails(
        "verify-full",
        "require",
        "server did not offer an authentication method that supports channel binding",
    );
    way.fails(
        "disable",
        "require",
        "channel binding required, but SSL not in use",
    );
}

/// The server offers channel binding, which must be hidden from a client in the clear: libpq would not log in.
#[test]
fn scram_with_tls_to_the_server_only() {
    let way = Way::new(Auth::Scram, "require", Shown::Own);
    for binding in ["disable", "prefer"] {
        way.works("disable", binding, "t");
    }
    way.fails(
        "disable",
        "require",
        "channel binding required, but SSL not in use",
    );
}

#[test]
fn scram_with_tls_on_both_legs() {
    let way = Way::new(Auth::Scram, "require", Shown::Own);
    way.works("verify-full", "disable", "t");
    for binding in ["prefer", "require"] {
        way.fails(
            "verify-full",
            binding,
            "FATAL:  28000: a login with SCRAM and channel binding cannot be relayed",
        );
        way.fails(
            "verify-full",
            binding,
            "HINT:  Connect with channel_binding=disable.",
        );
    }
    assert!(!way.postgres.log().contains("channel binding check failed"));
}

/// Channel binding refers to the certificate, and here both have the same one.
#[test]
fn scram_where_the_proxy_shows_the_servers_certificate() {
    let way = Way::new(Auth::Scram, "require", Shown::Servers);
    for binding in ["disable", "prefer", "require"] {
        way.works("verify-full", binding, "t");
    }
}
