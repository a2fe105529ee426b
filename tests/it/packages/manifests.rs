//! The manifests for Kubernetes and compose: a proxy accepts their settings, and their parts fit each other.

use std::process::Command;

use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{repository, write_secret};
use pgpalisade_test_servers::postgres::{Postgres, scratch_dir};
use pgpalisade_test_servers::proxy::{Options, Proxy};
use serde_json::Value;

/// Prints the documents of a YAML file as JSON, and fields unknown to Kubernetes' client to standard error.
const READ: &str = r#"
import json, sys, types, yaml
from kubernetes.client import ApiClient

def unknown(written, known, path):
    if isinstance(written, dict):
        for key, value in written.items():
            if key in known:
                unknown(value, known[key], path + [key])
            else:
                print(".".join(path + [key]), file=sys.stderr)
    elif isinstance(written, list):
        for index, value in enumerate(written):
            unknown(value, known[index], path)

documents = list(yaml.safe_load_all(open(sys.argv[1])))
for written in documents:
    if "kind" in written:
        client = ApiClient()
        read = client.deserialize(types.SimpleNamespace(data=json.dumps(written)), "V1" + written["kind"])
        unknown(written, client.sanitize_for_serialization(read), [written["kind"]])
print(json.dumps(documents))
"#;

/// Documents of a file of `packaging`, and the fields unknown to Kubernetes' client.
fn read(file: &str) -> (Vec<Value>, Vec<String>) {
    let mut command = Command::new("/usr/bin/python3");
    let path = repository().join("packaging").join(file);
    let read = command.args(["-c", READ]).arg(path).output().unwrap();
    let unknown = String::from_utf8(read.stderr).unwrap();
    let documents = serde_json::from_slice(&read.stdout)
        .unwrap_or_else(|error| panic!("{file}: {error}: {unknown}"));
    (documents, unknown.lines().map(str::to_owned).collect())
}

/// Settings of a proxy: a file, and variables.
struct Settings {
    file: String,
    variables: Vec<(String, String)>,
}

impl Settings {
    /// Value of a key in the file or a variable.
    fn of(&self, key: &str) -> &str {
        let variable = format!("PGPALISADE_{}", key.to_uppercase());
        let mut lines = self.file.lines();
        let in_file = lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        let mut variables = self.variables.iter();
        let in_variable =
            || variables.find_map(|(name, value)| (*name == variable).then_some(&**value));
        let value = in_file
            .or_else(in_variable)
            .unwrap_or_else(|| panic!("{key} is not set"));
        value.trim_matches('"')
    }

    /// Starts a proxy with them and these flags, and checks them. Addresses are replaced by those of this machine.
    fn start(
        &self,
        postgres: &Postgres,
        flags: &[(&str, String)],
        checked: &[(&str, String)],
    ) -> Proxy {
        let dir = scratch_dir();
        let file = dir.path().join("pgpalisade.toml");
        std::fs::write(&file, &self.file).unwrap();
        let mut options = Options::new(postgres).flag("--config", &file.display().to_string());
        options.environment.clone_from(&self.variables);
        for (flag, value) in flags {
            options = options.flag(flag, value);
        }
        let proxy = Proxy::start_with(options);
        let mut check = proxy.subcommand("check");
        check
            .arg("--config")
            .arg(&file)
            .envs(self.variables.iter().cloned());
        for (flag, value) in checked {
            check.args([flag, &**value]);
        }
        let said = check.output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        for id in ["config", "files"] {
            assert!(said.contains(&format!("ok    {id} ")), "{said}");
        }
        proxy
    }
}

/// Container of the proxy, its settings, and the rest of its pod.
fn pod(documents: &[Value]) -> (&Value, Settings, &Value) {
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind);
    let pod = &of_kind("Deployment").unwrap()["spec"]["template"]["spec"];
    let lists = ["containers", "initContainers"].map(|list| pod[list].as_array());
    let mut containers = lists.into_iter().flatten().flatten();
    let container = containers.find(|container| container["image"] == "pgpalisade");
    let container = container.unwrap();
    let file = of_kind("ConfigMap").map(|map| map["data"]["pgpalisade.toml"].as_str().unwrap());
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let variables = container["env"].as_array().unwrap().iter();
    let variables = variables.filter_map(|one| Some((text(&one["name"])?, text(&one["value"])?)));
    let settings = Settings {
        file: file.unwrap_or_default().to_owned(),
        variables: variables.collect(),
    };
    (container, settings, pod)
}

#[test]
fn kubernetes_knows_what_the_manifests_say() {
    let unknown = ["pair.yaml", "sidecar.yaml"].map(|file| read(&format!("kubernetes/{file}")).1);
    // Both are newer than Debian 12's client.
    let container = "Deployment.spec.template.spec";
    assert_eq!(
        unknown.concat(),
        [
            format!("{container}.containers.lifecycle.preStop.sleep"),
            format!("{container}.initContainers.restartPolicy"),
        ]
    );
}

#[test]
fn a_proxy_takes_the_settings_of_the_manifests_and_answers_the_probes() {
    let postgres = Postgres::start();
    let dir = scratch_dir();
    let token = dir.path().join("token");
    write_secret(&token, "0123456789abcdef\n");
    let token_file = ("--http-token-file", token.display().to_string());
    for (file, probes) in [("pair.yaml", 3), ("sidecar.yaml", 2)] {
        let (documents, _) = read(&format!("kubernetes/{file}"));
        let (container, mut settings, pod) = pod(&documents);
        // Here many run at the same time, and none in a pod.
        for (_, value) in &mut settings.variables {
            *value = value.replace("127.0.0.1:6432", "127.0.0.1:0");
        }
        let api = [
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "1"),
        ];
        let api = api.map(|(name, value)| (name.to_owned(), value.to_owned()));
        settings.variables.extend(api);
        let http = Http::free();
        let address = ("--http", format!("127.0.0.1:{}", http.port()));
        let flags = [token_file.clone(), address];
        let _proxy = settings.start(&postgres, &flags, &flags[..1]);

        let port_named = |name: &Value| {
            let mut ports = container["ports"].as_array().unwrap().iter();
            ports.find(|port| port["name"] == *name).unwrap()["containerPort"].clone()
        };
        let mut asked = 0;
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            let Some(get) = container[probe].get("httpGet") else {
                continue;
            };
            let address = format!("0.0.0.0:{}", port_named(&get["port"]));
            assert_eq!(settings.of("http"), address, "{file}: {probe}");
            let answer = http.get(get["path"].as_str().unwrap());
            assert_eq!(answer.status, 200, "{file}: {probe}: {answer:?}");
            asked += 1;
        }
        assert_eq!(asked, probes, "{file}");

        // The token's file is where the proxy looks, readable by its group and nobody else.
        let secret = &pod["volumes"].as_array().unwrap().last().unwrap();
        let mounts = container["volumeMounts"].as_array().unwrap();
        let mount = mounts.iter().find(|mount| mount["name"] == secret["name"]);
        let directory = mount.unwrap()["mountPath"].as_str().unwrap();
        let name = secret["secret"]["items"][0]["path"].as_str().unwrap();
        let found = settings.of("http_token_file");
        assert_eq!(found, format!("{directory}/{name}"));
        assert_eq!(secret["secret"]["defaultMode"], 0o440, "{file}");
        assert_eq!(pod["securityContext"]["fsGroup"], 65532, "{file}");
    }
}

/// The file and the ports match the rest of the manifest.
#[test]
fn the_pair_is_found_by_its_service() {
    let (documents, _) = read("kubernetes/pair.yaml");
    let (container, settings, _) = pod(&documents);
    assert_eq!(container["args"][2], "/etc/pgpalisade/pgpalisade.toml");
    assert_eq!(container["volumeMounts"][0]["mountPath"], "/etc/pgpalisade");
    let service = documents
        .iter()
        .find(|document| document["kind"] == "Service");
    let port = &service.unwrap()["spec"]["ports"][0]["targetPort"];
    assert_eq!(container["ports"][0]["name"], *port);
    let address = format!("0.0.0.0:{}", container["ports"][0]["containerPort"]);
    assert_eq!(settings.of("listen"), address);
}

#[test]
fn a_proxy_takes_the_settings_of_compose_and_is_published() {
    let postgres = Postgres::start();
    let (documents, _) = read("compose.yaml");
    for (name, port) in [("proxy-1", 6432), ("proxy-2", 6433)] {
        let service = &documents[0]["services"][name];
        assert_eq!(service["ports"][0], format!("127.0.0.1:{port}:6432"));
        let variables = service["environment"].as_object().unwrap().iter();
        let variables =
            variables.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()));
        let settings = Settings {
            file: String::new(),
            variables: variables.collect(),
        };
        drop(settings.start(&postgres, &[], &[]));
    }
}
