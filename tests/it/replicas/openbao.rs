//! OpenBao with its storage in PostgreSQL, in two nodes.
//!
//! Before each write it asks whether the lock is still its own. What it then writes is not bound to the answer.

use std::path::Path;
use std::process::Command;

use pgpalisade_harness::child::Running;
use pgpalisade_test_servers::machine::{TERM, free_port};
use pgpalisade_test_servers::wire::Endpoint;

use super::{Program, shows};
use crate::interpreters::python_packages;

/// Initializes the first node, and writes one secret through both.
const CLIENT: &str = r#"trap 'kill $(jobs -p)' TERM
until curl -sfd '{"recovery_shares": 1, "recovery_threshold": 1}' "$1/v1/sys/init" -o init; do sleep 0.2; done
token=$(sed -E 's/.*"root_token":"([^"]*)".*/X-Vault-Token: \1/' init)
until curl -sfH "$token" -d '{"type": "kv"}' "$1/v1/sys/mounts/kv"; do sleep 0.2; done
write() { while sleep 0.1; do curl -sm 60 -H "$token" -d '{"word": "pencil"}' "$1/v1/kv/secret"; done; }
write "$1" & write "$2" & wait"#;

struct Node {
    name: &'static str,
    api: u16,
    cluster: u16,
}

impl Node {
    fn new(name: &'static str) -> Self {
        let (api, cluster) = (free_port(), free_port());
        Self { name, api, cluster }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.api)
    }

    /// Writes its configuration.
    fn configure(&self, file: &Path, server: &Endpoint) {
        let (api, cluster, url) = (self.api, self.cluster, self.url());
        let (host, port) = (server.host(), server.port());
        let text = format!(
            r#"storage "postgresql" {{
    connection_url = "postgres://postgres@{host}:{port}/postgres?sslmode=disable"
    ha_enabled = "true"
}}
seal "static" {{
    current_key_id = "1"
    current_key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
}}
listener "tcp" {{
    address = "127.0.0.1:{api}"
    tls_disable = true
}}
api_addr = "{url}"
cluster_addr = "http://127.0.0.1:{cluster}"
"#
        );
        std::fs::write(file, text).unwrap();
    }
}

#[test]
fn openbao() {
    // The package has the program of OpenBao's release, and becomes it.
    let bao = python_packages("tests/it/replicas/openbao.txt", "openbao").join("bao");
    let dir = tempfile::tempdir().unwrap();
    let nodes = ["first", "second"].map(Node::new);
    let setup = |_: &_| {
        let mut client = Command::new("bash");
        client
            .args(["-c", CLIENT, "client"])
            .args(nodes.each_ref().map(Node::url));
        let client = Running::spawn(client.current_dir(&dir), dir.path().join("log"), TERM);
        vec![client.unwrap()]
    };
    let command = |name: &str, server: &Endpoint| {
        let file = dir.path().join(name).with_extension("hcl");
        let node = nodes.iter().find(|node| node.name == name).unwrap();
        node.configure(&file, server);
        let mut command = Command::new(&bao);
        command.args(["server", "-config"]).arg(file);
        command
    };
    let program = Program {
        command: &command,
        checks: "openbao_ha_locks",
        check: "%COUNT(*)%openbao_ha_locks%",
        writes: ("openbao_kv_store", "new.key = 'secret'"),
        expire: "UPDATE openbao_ha_locks SET valid_until = now() - interval '1 s'",
    };
    shows(&setup, &program);
}
