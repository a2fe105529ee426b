//! Starts the process of a target: its settings, its port, and how one sees that it is ready.

use std::fs::{self, File};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgpalisade::demo::child::ChildGuard;
use pgpalisade_tests::machine::free_port;
use rustix::process::Signal;

use super::{Address, Kind, Link, Target, forget_settings};
use crate::Error;
use crate::ground::{DATABASE, Ground, ROLE};

/// The proxy's file of refusals, in the directory of the target.
pub(super) const REJECTIONS: &str = "rejections.jsonl";

/// What the process has said, in the directory of the target.
const OUTPUT: &str = "output";

const START_LIMIT: Duration = Duration::from_secs(30);

/// Another process can take a port between our look and the bind.
const ATTEMPTS: usize = 5;

/// The peers end at once on SIGTERM. The second one has pgpalisade do so too, where sessions are left.
const FAREWELL: &[(Signal, Duration)] = &[
    (Signal::TERM, Duration::from_secs(5)),
    (Signal::TERM, Duration::from_secs(2)),
];

/// Starts it, on a free port.
pub(super) fn start(
    kind: Kind,
    link: Link,
    ground: &Ground,
    flags: &[&str],
) -> Result<Target, Error> {
    let Some(program) = kind.program()? else {
        return Ok(direct(link, ground));
    };
    let mut attempt = 1;
    loop {
        let directory = new_directory(ground)?;
        let port = free_port();
        let launch = Launch {
            kind,
            link,
            program: &program,
            directory: &directory,
            ground,
            port,
        };
        match launch.start(flags) {
            Ok(process) => {
                return Ok(Target {
                    kind,
                    link,
                    address: tcp(port),
                    process: Some(process),
                    directory: Some(directory),
                });
            }
            Err(Error::DidNotStart { output, .. })
                if attempt < ATTEMPTS && is_port_taken(&output) =>
            {
                attempt += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn direct(link: Link, ground: &Ground) -> Target {
    let postgres = ground.postgres();
    let address = match link {
        Link::Tcp => tcp(postgres.port()),
        Link::Unix => Address {
            host: postgres.socket_directory().display().to_string(),
            port: postgres.port(),
        },
    };
    Target {
        kind: Kind::Direct,
        link,
        address,
        process: None,
        directory: None,
    }
}

fn tcp(port: u16) -> Address {
    Address {
        host: "127.0.0.1".to_owned(),
        port,
    }
}

/// As the operating system, libevent and haproxy put it.
fn is_port_taken(output: &str) -> bool {
    let output = output.to_lowercase();
    output.contains("in use") || output.contains("cannot bind")
}

/// What the process has said so far.
pub(super) fn output(directory: &Path) -> String {
    let said = fs::read(directory.join(OUTPUT)).unwrap_or_default();
    String::from_utf8_lossy(&said).into_owned()
}

/// A directory of its own for each start, which the user of the servers may read and write.
fn new_directory(ground: &Ground) -> Result<PathBuf, Error> {
    let make = || {
        let directory = tempfile::Builder::new()
            .prefix("target-")
            .tempdir_in(ground.directory())?
            .keep();
        Ok(directory)
    };
    let directory: PathBuf = make().map_err(Error::system("cannot make a directory"))?;
    if let Some((uid, gid)) = ground.unprivileged()? {
        std::os::unix::fs::chown(&directory, Some(uid), Some(gid))
            .map_err(Error::system("cannot give a directory away"))?;
    }
    Ok(directory)
}

struct Launch<'a> {
    kind: Kind,
    link: Link,
    program: &'a Path,
    directory: &'a Path,
    ground: &'a Ground,
    port: u16,
}

impl Launch<'_> {
    fn start(&self, flags: &[&str]) -> Result<ChildGuard, Error> {
        let mut command = Command::new(self.program);
        forget_settings(&mut command);
        self.configure(&mut command)?;
        let mut spawn = || {
            let output = File::create(self.directory.join(OUTPUT))?;
            command
                .args(flags)
                .current_dir(self.directory)
                .stdin(Stdio::null())
                .stdout(output.try_clone()?)
                .stderr(output)
                // Ctrl-C is for us, and we stop things in order.
                .process_group(0)
                .spawn()
        };
        let child = spawn().map_err(Error::system(format!("cannot start {}", self.kind)))?;
        let mut child = ChildGuard::new(child, FAREWELL);
        let start = Instant::now();
        while start.elapsed() < START_LIMIT && child.ended().is_none() {
            if self.ground.stop().is_cancelled() {
                return Err(Error::Interrupted);
            }
            if self.is_ready() {
                return Ok(child);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err(Error::DidNotStart {
            what: self.kind.name(),
            output: output(self.directory),
        })
    }

    /// What says that it listens is asked for it, the others are tried: to them, that is a session that ends.
    fn is_ready(&self) -> bool {
        match self.kind {
            Kind::Pgbouncer | Kind::Haproxy => TcpStream::connect(("127.0.0.1", self.port)).is_ok(),
            Kind::Direct | Kind::Bound | Kind::NoToken | Kind::Observe | Kind::Relay => {
                says_it_listens(&output(self.directory))
            }
        }
    }

    fn configure(&self, command: &mut Command) -> Result<(), Error> {
        match self.kind {
            Kind::Direct => Ok(()),
            Kind::Bound | Kind::NoToken | Kind::Observe => {
                self.pgpalisade(command);
                Ok(())
            }
            Kind::Pgbouncer => self.pgbouncer(command),
            Kind::Haproxy => self.haproxy(command),
            Kind::Relay => {
                command.args([self.listen(), self.upstream_address()]);
                Ok(())
            }
        }
    }

    fn listen(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// `HOST:PORT`, or the path of the socket.
    fn upstream_address(&self) -> String {
        let postgres = self.ground.postgres();
        match self.link {
            Link::Tcp => format!("127.0.0.1:{}", postgres.port()),
            Link::Unix => {
                let name = format!(".s.PGSQL.{}", postgres.port());
                postgres.socket_directory().join(name).display().to_string()
            }
        }
    }

    /// With its default settings, as users run it.
    fn pgpalisade(&self, command: &mut Command) {
        let postgres = self.ground.postgres();
        let upstream = match self.link {
            Link::Tcp => format!("postgres://127.0.0.1:{}", postgres.port()),
            Link::Unix => self.upstream_address(),
        };
        let authority = self.ground.authority();
        command
            .args(["serve", "--listen", &self.listen()])
            .args(["--upstream", &upstream])
            .args(["--authority", &format!("embedded:{}", authority.display())])
            .arg("--rejection-log")
            .arg(self.directory.join(REJECTIONS))
            .args(["--shutdown-grace", "1s"])
            .env("PGUSER", pgpalisade::demo::private_postgres::SUPERUSER)
            .env("PGPASSWORD", postgres.password())
            .env("PGDATABASE", "postgres");
        if self.kind == Kind::Observe {
            command.arg("--observe=on");
        }
    }

    /// `mode tcp` and nothing else: threads, buffers and polling are at their defaults, and nothing is logged.
    fn haproxy(&self, command: &mut Command) -> Result<(), Error> {
        let server = match self.link {
            Link::Tcp => self.upstream_address(),
            Link::Unix => format!("unix@{}", self.upstream_address()),
        };
        let settings = format!(
            "global\n    maxconn {}\n\
             defaults\n    mode tcp\n    timeout connect 30s\n    timeout client 1d\n    timeout server 1d\n\
             frontend clients\n    bind {}\n    default_backend servers\n\
             backend servers\n    server postgres {server}\n",
            self.connections_max(),
            self.listen(),
        );
        let file = self.settings("haproxy.cfg", &settings)?;
        command.args(["-db", "-f"]).arg(file);
        self.demote(command)
    }

    /// A server connection for each session, and nothing is logged about one.
    fn pgbouncer(&self, command: &mut Command) -> Result<(), Error> {
        let postgres = self.ground.postgres();
        let host = match self.link {
            Link::Tcp => "127.0.0.1".to_owned(),
            Link::Unix => postgres.socket_directory().display().to_string(),
        };
        let users = self.settings("users.txt", &format!("\"{ROLE}\" \"\"\n"))?;
        let connections = self.connections_max();
        let settings = format!(
            "[databases]\n{DATABASE} = host={host} port={}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {}\npool_mode = session\n\
             max_client_conn = {connections}\ndefault_pool_size = {connections}\n\
             log_connections = 0\nlog_disconnections = 0\nlog_pooler_errors = 0\nlog_stats = 0\n",
            postgres.port(),
            self.port,
            users.display(),
        );
        let file = self.settings("pgbouncer.ini", &settings)?;
        command.arg(file);
        self.demote(command)
    }

    /// With room for sessions that are just ending.
    fn connections_max(&self) -> u32 {
        self.ground.connections() + 20
    }

    fn settings(&self, name: &str, text: &str) -> Result<PathBuf, Error> {
        let file = self.directory.join(name);
        fs::write(&file, text).map_err(Error::system(format!("cannot write {name}")))?;
        Ok(file)
    }

    fn demote(&self, command: &mut Command) -> Result<(), Error> {
        if let Some((uid, gid)) = self.ground.unprivileged()? {
            // `uid` also drops the supplementary groups of root.
            command.gid(gid).uid(uid);
        }
        Ok(())
    }
}

/// `listening on 127.0.0.1:40001, ...`, once the line is whole.
fn says_it_listens(said: &str) -> bool {
    said.split_inclusive('\n')
        .any(|line| line.starts_with("listening on ") && line.ends_with('\n'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines() {
        for (said, expect) in [
            ("listening on 127.0.0.1:40001, upstream /x\n", true),
            ("INFO starting\nlistening on 127.0.0.1:40001\n", true),
            ("listening on 127.0.0.1:4000", false),
            ("something else\n", false),
        ] {
            assert_eq!(says_it_listens(said), expect, "{said}");
        }
    }

    #[test]
    fn ports_that_are_taken() {
        for (output, expect) in [
            ("Error: Address already in use (os error 98)", true),
            ("cannot bind TCP address 127.0.0.1:80", true),
            ("no such file", false),
        ] {
            assert_eq!(is_port_taken(output), expect, "{output}");
        }
    }
}
