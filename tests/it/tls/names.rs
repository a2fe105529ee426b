//! Policy rules that require a name in a client's certificate.

use pgpalisade_test_servers::policy::PolicyFile;
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::proxy::{Options, Proxy};
use pgpalisade_test_servers::tls::{Authority, TlsClient, Validity};
use pgpalisade_test_servers::wire::{TRUSTED, Wire, errors};

use super::with_tls;

/// As `clientcert=verify-full` of `pg_hba.conf`, with a rule for each name.
#[test]
fn a_rule_is_for_whom_the_certificate_names() {
    let postgres = Postgres::start();
    postgres.sql("CREATE TABLE t (id int)");
    let authority = Authority::new();
    let pair = authority.issue_local("proxy");
    let policy = PolicyFile::new(
        "[[session]]\nmatch = { user = \"postgres\", cn = [\"migrator\", \"batch-*\"] }\nwrites = \"allow\"\n",
    );
    let options = with_tls(Options::new(&postgres), "allow", &pair)
        .flag(
            "--tls-client-ca",
            &authority.certificate().display().to_string(),
        )
        .policy(&policy);
    let proxy = Proxy::start_with(options);
    let write = |mut wire: Wire| errors(&wire.query("INSERT INTO t VALUES (1)")).concat();
    let login = |client: &TlsClient| Wire::login_tls(&proxy.endpoint(), client, &TRUSTED);
    let shows = |name: &str| {
        let own = authority.issue(name, &["client"], Validity::Now);
        login(&TlsClient::new(&authority.certificate(), Some(&own)))
    };
    assert_eq!(write(shows("migrator")), "");
    assert_eq!(write(shows("batch-7")), "");
    for name in ["Migrator", "migrator2", "postgres"] {
        assert_eq!(write(shows(name)), "PF002", "{name}");
    }
    // A client without a certificate has no name, with TLS or without, and no host name counts.
    assert_eq!(write(login(&authority.client())), "PF002");
    assert_eq!(write(Wire::login(&proxy.endpoint(), &TRUSTED)), "PF002");
    // The next policy is applied to the same name.
    let mut open = shows("migrator");
    open.ok("INSERT INTO t VALUES (2)");
    policy.reload(
        &proxy,
        "[[session]]\nmatch = { cn = \"migrator\" }\nwrites = \"refuse\"\n",
    );
    assert_eq!(write(open), "PF005");
    assert_eq!(write(shows("batch-7")), "PF002");
}
