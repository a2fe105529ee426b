//! The servers of the demo: a private PostgreSQL, and this program in front of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, ProcessGroup, Running};
use pgpalisade_harness::patience::Patience;
use pgpalisade_harness::postgres::{PrivatePostgres, Programs, SUPERUSER};
use pgpalisade_harness::{HarnessError, Signal, proxy, system};
use tokio_util::sync::CancellationToken;

/// Both take about a second; a busy machine gets a minute for each.
const START_LIMIT: Duration = Duration::from_secs(60);

const FAREWELL: Farewell = &[
    (Signal::TERM, Duration::from_secs(5)),
    (Signal::TERM, Duration::from_secs(2)),
];

/// Dropping ends both servers, the proxy first.
#[derive(Debug)]
pub(super) struct DemoServers {
    proxy: Running,
    pub(super) proxy_port: u16,
    pub(super) postgres: PrivatePostgres,
    /// Password of the superuser, who may run programs: keeps other users of the machine out.
    pub(super) password: String,
    pub(super) rejection_log: PathBuf,
}

impl DemoServers {
    /// Starts both, with their files in `directory`.
    pub(super) fn start(directory: &Path, stop: &CancellationToken) -> Result<Self, HarnessError> {
        let patience = Patience::unless(START_LIMIT, stop);
        let password = format!("{:032x}", rand::random::<u128>());
        let postgres = start_postgres(&directory.join("postgres"), &password, &patience)?;
        let rejection_log = directory.join("rejections.jsonl");
        let program = std::env::current_exe().map_err(system("cannot find this program"))?;
        let mut command = proxy::command(&program, ProcessGroup::Own);
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--shutdown-grace", "1s"])
            .args(["--workers", "2", "--upstream"])
            .arg(postgres.socket())
            .arg("--authority")
            .arg(format!("embedded:{}/authority", directory.display()))
            .arg("--rejection-log")
            .arg(&rejection_log)
            .env("PGUSER", SUPERUSER)
            .env("PGPASSWORD", &password)
            .env("PGDATABASE", "postgres");
        let mut proxy = Running::spawn(&mut command, directory.join("proxy.log"), FAREWELL)?;
        Ok(Self {
            proxy_port: proxy::wait_until_listening(&mut proxy, &patience)?,
            proxy,
            postgres,
            password,
            rejection_log,
        })
    }

    /// Login as superuser over TCP, to PostgreSQL or to the proxy.
    pub(super) fn login(&self, port: u16) -> tokio_postgres::Config {
        let mut login = tokio_postgres::Config::new();
        login
            .host("127.0.0.1")
            .port(port)
            .user(SUPERUSER)
            .password(&self.password)
            .dbname("postgres");
        login
    }

    pub(super) fn ended(&mut self) -> Option<&'static str> {
        match (self.proxy.ended(), self.postgres.process().ended()) {
            (Some(_), _) => Some("the proxy"),
            (_, Some(_)) => Some("PostgreSQL"),
            _ => None,
        }
    }
}

fn start_postgres(
    directory: &Path,
    password: &str,
    patience: &Patience,
) -> Result<PrivatePostgres, HarnessError> {
    let programs = Programs::find(ProcessGroup::Own)?;
    let file = directory.join("password");
    fs::create_dir(directory).map_err(system("cannot make the directory of PostgreSQL"))?;
    // From here on only this user can enter it.
    programs.give(directory)?;
    fs::write(&file, password).map_err(system("cannot write the password file"))?;
    let password_file = format!("--pwfile={}", file.display());
    programs.init(
        directory,
        &["-A", "scram-sha-256", &password_file],
        patience,
    )?;
    PrivatePostgres::start::<&str>(&programs, directory, &[], patience)
}
