//! Headless Chromium, driven through WebDriver.

use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use fantoccini::{Client, ClientBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use pgpalisade_harness::child::{ProcessGroup, Running};
use rustix::process::{Pid, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine::{self, PATIENCE, Signal, wait_for};

#[derive(Debug)]
pub struct Browser {
    pub page: Client,
    driver: Running,
    _dir: TempDir,
}

impl Browser {
    pub async fn open(width: u32, height: u32) -> Self {
        let dir = tempfile::tempdir().expect("a scratch directory");
        let port = machine::free_port();
        // In a process group, so that the browser ends with its driver.
        let mut command = ProcessGroup::Own.command("chromedriver");
        command.arg(format!("--port={port}"));
        let driver =
            Running::spawn(&mut command, dir.path().join("log"), &[]).expect("chromedriver");
        wait_for("chromedriver", || {
            TcpStream::connect(("127.0.0.1", port)).ok()
        });
        let data = format!("--user-data-dir={}", dir.path().join("data").display());
        let size = format!("--window-size={width},{height}");
        // In a container without a sandbox, and without requests to the Web.
        let arguments = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--disable-quic",
            &data,
            &size,
        ];
        let options = json!({ "goog:chromeOptions": { "args": arguments } });
        let Value::Object(capabilities) = options else {
            panic!("no object");
        };
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(capabilities.into_iter().collect());
        let address = format!("http://127.0.0.1:{port}");
        let page = tokio::time::timeout(PATIENCE, builder.connect(&address)).await;
        Self {
            page: page.expect("a browser in time").expect("a browser"),
            driver,
            _dir: dir,
        }
    }

    pub async fn value(&self, expression: &str) -> Value {
        let script = format!("return {expression}");
        self.page
            .execute(&script, Vec::new())
            .await
            .expect("a value")
    }

    #[track_caller]
    pub fn until(&self, expression: &str) -> impl Future<Output = ()> {
        let place = std::panic::Location::caller();
        async move {
            let deadline = tokio::time::Instant::now() + PATIENCE;
            while self.value(expression).await != Value::Bool(true) {
                if tokio::time::Instant::now() > deadline {
                    let text = self.value("document.body.innerText").await;
                    panic!(
                        "{place}: never so: {expression}\n{}",
                        text.as_str().unwrap_or_default()
                    );
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }

    pub async fn picture(&self, file: &Path) {
        let png = self.page.screenshot().await.expect("a picture");
        std::fs::write(file, png).expect("a file");
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.driver.pid()).unwrap_or_default());
        let _gone_already = group.map(|group| kill_process_group(group, Signal::KILL));
    }
}
