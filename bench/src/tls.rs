//! `pgbench -S` with TLS on no leg, on the client's, and on both: TLS 1.3 with `TLS_AES_256_GCM_SHA384` for every
//! target.
//!
//! haproxy has no TLS that begins with PostgreSQL's SSLRequest. With TLS on both legs it carries encrypted bytes.

use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::tls::Authority;
use strum::VariantArray as _;

use crate::pgbench;
use crate::plan::BenchPlan;
use crate::record::{ComparedTarget, Measurement, Record};
use crate::transactions::{Reads, psql};
use crate::ways::{TlsSettings, Way, server};

#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::VariantArray)]
enum Legs {
    #[strum(to_string = "no TLS")]
    None,
    #[strum(to_string = "client TLS")]
    Client,
    #[strum(to_string = "both TLS")]
    Both,
}

impl Legs {
    fn settings(self, certificate: &str, key: &str, pem: &str) -> TlsSettings {
        if self == Self::None {
            return TlsSettings::default();
        }
        let mut tls = TlsSettings {
            sslmode: "require",
            upstream: "",
            flags: vec![
                ("--tls-mode", "require".to_owned()),
                ("--tls-certificate", certificate.to_owned()),
                ("--tls-key", key.to_owned()),
            ],
            pgbouncer: format!(
                "client_tls_sslmode = require\nclient_tls_cert_file = {pem}\nclient_tls_key_file = {pem}\n\
                 client_tls_protocols = tlsv1.3\n"
            ),
        };
        if self == Self::Both {
            tls.upstream = "?sslmode=require";
            tls.pgbouncer += "server_tls_sslmode = require\nserver_tls_protocols = tlsv1.3\n";
        }
        tls
    }

    /// Checks PostgreSQL's end of a session against the measured legs.
    fn check(self, way: &Way) {
        let own =
            "SELECT concat_ws(' ', version, cipher) FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        let is_encrypted = match way.target {
            ComparedTarget::Direct => self != Self::None,
            _ => self == Self::Both,
        };
        let expect = if is_encrypted {
            "TLSv1.3 TLS_AES_256_GCM_SHA384"
        } else {
            ""
        };
        assert_eq!(psql(way, own).trim(), expect, "{way:?}");
    }
}

pub(crate) fn tls(plan: &BenchPlan) -> Vec<Record> {
    // Enough clients to keep the cores awake.
    let clients = plan.clients.get(1..2).unwrap_or_default();
    let of_legs = Legs::VARIANTS.iter().map(|&legs| of(legs, clients, plan));
    of_legs.flatten().collect()
}

fn of(legs: Legs, clients: &[u32], plan: &BenchPlan) -> Vec<Record> {
    let clients_max = clients.iter().copied().max().unwrap_or_default();
    let authority = Authority::new();
    let pair = authority.issue_local("server");
    let settings = authority.settings(&pair);
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    // pgbouncer keeps its sessions.
    let postgres: Postgres = server(2 * clients_max, &settings);
    pgbench::initialise(&postgres, 1);
    let pem = authority.lend(&[&pair.certificate, &pair.key], authority.path("both.pem"));
    let [certificate, key, pem] =
        [&pair.certificate, &pair.key, &pem].map(|path| path.display().to_string());
    let tls = legs.settings(&certificate, &key, &pem);
    let speaks =
        |target: &ComparedTarget| legs != Legs::Client || *target != ComparedTarget::Haproxy;
    let targets = ComparedTarget::VARIANTS.iter().copied().filter(speaks);
    let ways: Vec<Way> = targets
        .map(|target| Way::encrypted(target, &postgres, clients_max, &tls))
        .collect();
    ways.iter().for_each(|way| legs.check(way));
    let [simple, prepared] =
        ["simple", "prepared"].map(|protocol| (format!("{protocol}, {legs}"), protocol));
    let reads = Reads {
        measurement: Measurement::Tls,
        clients,
        protocols: &[(&simple.0, simple.1), (&prepared.0, prepared.1)],
    };
    reads.records(plan, &ways)
}
