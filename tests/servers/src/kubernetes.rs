//! A small server of Kubernetes Leases, since Debian has no kube-apiserver.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgpalisade_harness::child::Running;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::Http;
use crate::machine::{self, Signal, repository};
use crate::tls::Authority;

const COLLECTION: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

#[derive(Debug)]
pub struct Kubernetes {
    http: Http,
    dir: TempDir,
    api: Running,
}

impl Kubernetes {
    /// Without TLS and authentication, as `kubectl proxy` serves.
    pub fn start() -> Self {
        Self::spawn(&[])
    }

    /// With a certificate of this authority for 127.0.0.1. Clients need the token.
    pub fn with_tls(authority: &Authority, token: &str) -> Self {
        let pair = authority.issue_local("kubernetes");
        let file = |path: &Path| path.display().to_string();
        Self::spawn(&[&file(&pair.certificate), &file(&pair.key), token])
    }

    fn spawn(arguments: &[&str]) -> Self {
        let (dir, http) = (tempfile::tempdir().expect("a directory"), Http::free());
        let mut command = Command::new("/usr/bin/python3");
        command
            .arg(repository().join("tests/it/recipes/lease_api.py"))
            .arg(http.port().to_string())
            .args(arguments)
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let api = Running::spawn(&mut command, dir.path().join("log"), &[]).expect("python3");
        machine::wait_for("the API", || http.connect().ok());
        let config = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nusers: []\n\
             clusters: [{{name: k, cluster: {{server: 'http://127.0.0.1:{}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: k, user: ''}}}}]\n",
            http.port()
        );
        fs::write(dir.path().join("config"), config).expect("write the configuration");
        Self { http, dir, api }
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.http.port())
    }

    pub fn config(&self) -> PathBuf {
        self.dir.path().join("config")
    }

    pub fn log(&self) -> String {
        self.api.output()
    }

    /// Stops the server (SIGSTOP); its sockets stay open.
    pub fn pause(&self) {
        machine::pause(self.api.pid());
    }

    pub fn resume(&self) {
        machine::signal(self.api.pid(), Signal::CONT);
    }

    #[track_caller]
    pub fn lease(&self, name: &str) -> Value {
        self.ask("GET", name, "").expect("a Lease")
    }

    /// Creates a Lease with this specification.
    #[track_caller]
    pub fn create(&self, name: &str, spec: &Value) {
        let lease = json!({ "metadata": { "name": name }, "spec": spec }).to_string();
        self.ask("POST", "", &lease).expect("a new Lease");
    }

    #[track_caller]
    pub fn delete(&self, name: &str) {
        self.ask("DELETE", name, "").expect("a Lease");
    }

    /// Changes a Lease; retries after a conflict.
    #[track_caller]
    pub fn change(&self, name: &str, change: impl Fn(&mut Value)) {
        machine::wait_for("a change", || self.try_change(name, &change));
    }

    /// Changes a Lease. `None` if it does not exist, or was changed since it was read.
    pub fn try_change(&self, name: &str, change: impl Fn(&mut Value)) -> Option<Value> {
        let mut lease = self.ask("GET", name, "")?;
        change(&mut lease);
        self.ask("PUT", name, &lease.to_string())
    }

    /// `None` if the Lease does not exist, or was changed since it was read.
    #[track_caller]
    fn ask(&self, method: &str, name: &str, body: &str) -> Option<Value> {
        let fields = format!("Connection: close\r\nContent-Length: {}\r\n", body.len());
        let path = format!("{COLLECTION}/{name}");
        let path = path.trim_end_matches('/');
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n{body}");
        let answer = self.http.send(&request).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        head.starts_with("HTTP/1.1 20")
            .then(|| serde_json::from_str(body).expect("JSON"))
    }
}
