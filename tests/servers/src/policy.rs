//! A policy file, and a proxy that reloads it.

use std::path::PathBuf;

use tempfile::TempDir;

use crate::machine::{Signal, signal, wait_until};
use crate::proxy::{Options, Proxy};

#[derive(Debug)]
pub struct PolicyFile {
    dir: TempDir,
}

impl PolicyFile {
    pub fn new(text: &str) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("pgp-")
            .tempdir()
            .expect("a scratch directory");
        let file = Self { dir };
        file.write(text);
        file
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("policy.toml")
    }

    pub fn write(&self, text: &str) {
        std::fs::write(self.path(), format!("{text}\n")).expect("write the policy file");
    }

    /// Replaces the text and makes the proxy reload it. Returns once the proxy has logged the result.
    pub fn reload(&self, proxy: &Proxy, text: &str) {
        let said = |output: &str| output.matches("the policy file").count();
        let before = said(&proxy.output());
        self.write(text);
        signal(proxy.pid(), Signal::HUP);
        wait_until("the proxy to read its policy again", || {
            said(&proxy.output()) > before
        });
    }
}

impl Options {
    pub fn policy(self, file: &PolicyFile) -> Self {
        self.flag("--policy", &file.path().display().to_string())
    }
}
