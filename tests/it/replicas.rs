//! Real programs in two replicas, unchanged but for host and port: each is stopped between its own check and its
//! write, until the other has taken over. Directly at PostgreSQL the late write lands; behind
//! [listeners](../../docs/listeners.md) that give the token it is refused.

mod icingadb;
mod invoices;
mod openbao;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use pgpalisade_harness::child::{Farewell, Running};
use pgpalisade_test_servers::etcd::Etcd;
use pgpalisade_test_servers::http::Http;
use pgpalisade_test_servers::machine::{
    Signal, children, free_port, pause, repository, signal, wait_for, wait_until,
};
use pgpalisade_test_servers::postgres::Postgres;
use pgpalisade_test_servers::programs::connect_by_environment;
use pgpalisade_test_servers::proxy::{Proxy, Store};
use pgpalisade_test_servers::wire::Endpoint;
use tempfile::TempDir;

/// As systemd with `Restart=always`: some programs end when the database refuses them.
const SUPERVISOR: &str =
    "trap 'kill -9 $!; exit' TERM\nwhile :; do \"$@\" & wait $!; sleep 0.5; done";

const STOP: Farewell = &[(Signal::TERM, Duration::from_secs(10))];

/// Who has written, in the order of their commits.
const RECORD: &str = "CREATE TABLE record (n bigserial, writer text);
    CREATE FUNCTION record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO public.record (writer) VALUES (current_setting('application_name'));
        RETURN NULL;
    END $$";

/// How drivers say that a connection was ended or refused.
const REFUSED: [&str; 3] = ["PF001", "57P0", "closed"];

/// What a test must know of a program.
struct Program<'a> {
    /// Starts a replica of this name.
    command: &'a dyn Fn(&str, &Endpoint) -> Command,
    /// Read by its check.
    checks: &'a str,
    /// The check itself, for LIKE.
    check: &'a str,
    /// Written after the check: a table, and which rows of it.
    writes: (&'a str, &'a str),
    /// Lets the lock that a stopped replica has in the database expire.
    expire: &'a str,
}

/// A file of these tests.
fn file(name: &str) -> PathBuf {
    repository().join("tests/it/replicas").join(name)
}

/// A program under a supervisor.
struct Replica {
    name: &'static str,
    supervisor: Running,
    dir: TempDir,
}

impl Replica {
    fn start(name: &'static str, program: &Program<'_>, server: &Endpoint) -> Self {
        let own = (program.command)(name, server);
        let mut command = Command::new("bash");
        command.args(["-c", SUPERVISOR, "supervisor"]);
        command.arg(own.get_program()).args(own.get_args());
        connect_by_environment(&mut command, server);
        for (variable, value) in own.get_envs() {
            command.env(variable, value.unwrap());
        }
        command.env("PGAPPNAME", name);
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("log");
        let supervisor = Running::spawn(&mut command, log, STOP).unwrap();
        Self {
            name,
            supervisor,
            dir,
        }
    }

    fn pid(&self) -> u32 {
        let [pid] = children(self.supervisor.pid())[..] else {
            panic!("{} runs once", self.name);
        };
        pid
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("--- {}\n{}", self.name, self.supervisor.output());
        }
        let _removed_with_it = &self.dir;
    }
}

/// A proxy beside each replica, with one store.
struct Proxies {
    proxies: [(Proxy, Http, Endpoint); 2],
    etcd: Etcd,
}

impl Proxies {
    fn start(postgres: &Postgres) -> Self {
        let etcd = Etcd::start(1);
        let store = Store::Url(etcd.authority());
        let start = || {
            let (http, port) = (Http::free(), free_port());
            let listener = format!(
                "{{ listen = \"127.0.0.1:{port}\", token = \"lease\", without = \"refuse\" }}"
            );
            let mut options = http.options(postgres).flag("--listener", &listener);
            options.store = store.clone();
            let listener = Endpoint::Tcp(([127, 0, 0, 1], port).into());
            (Proxy::start_with(options), http, listener)
        };
        let first = start();
        wait_until("the first lead", || first.1.get("/leader").status == 200);
        Self {
            proxies: [first, start()],
            etcd,
        }
    }

    /// The machine of the first replica sleeps for longer than its proxy's lease, which is taken away to save time.
    fn first_sleeps(&self) {
        let [(proxy, ..), (_, http, _)] = &self.proxies;
        proxy.pause();
        self.etcd
            .ctl(&["del", "--prefix", "/pgpalisade/scope-lease/"]);
        wait_until("the second lead", || http.get("/leader").status == 200);
    }
}

/// A program in two replicas at one server.
struct Race<'a> {
    program: &'a Program<'a>,
    postgres: &'a Postgres,
    proxies: Option<Proxies>,
}

impl Race<'_> {
    fn start(&self, name: &'static str) -> Replica {
        let own = usize::from(name != "first");
        let server = self.proxies.as_ref().map(|all| all.proxies[own].2.clone());
        let server = server.unwrap_or_else(|| self.postgres.tcp());
        Replica::start(name, self.program, &server)
    }

    /// From the first write on, records each.
    fn record(&self) {
        let (table, rows) = self.program.writes;
        let is_there = format!("SELECT to_regclass('{table}') IS NOT NULL");
        wait_until("the table", || self.postgres.value(&is_there) == "t");
        self.postgres.sql(&format!(
            "CREATE CONSTRAINT TRIGGER record AFTER INSERT OR UPDATE ON {table} \
             DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN ({rows}) EXECUTE FUNCTION record()"
        ));
        wait_until("its first write", || self.writers() == ["first"]);
    }

    /// The writers in their order, without repetitions.
    fn writers(&self) -> Vec<String> {
        let writers = self.postgres.sql("SELECT writer FROM record ORDER BY n");
        let mut writers = writers.concat();
        writers.dedup();
        writers
    }

    fn writes_of_second(&self) -> u64 {
        let count = "SELECT count(*) FROM record WHERE writer = 'second'";
        self.postgres.value(count).parse().unwrap()
    }

    /// Stops a replica that has asked what its check asks, and has not read the answer. Returns its pid.
    fn stop_in_its_check(&self, replica: &Replica) -> u32 {
        let (name, pid) = (replica.name, replica.pid());
        let waits = format!(
            "SELECT query LIKE '{}' FROM pg_stat_activity \
             WHERE application_name = '{name}' AND wait_event_type = 'Lock'",
            self.program.check
        );
        let mut trap = self.postgres.admin();
        wait_for("its check", || {
            trap.ok("BEGIN");
            trap.ok(&format!("LOCK TABLE {}", self.program.checks));
            let waiting = wait_for("a lock", || {
                Some(self.postgres.sql(&waits).concat()).filter(|all| !all.is_empty())
            });
            let is_its_check = waiting.contains(&"t".to_owned());
            if is_its_check {
                pause(pid);
            }
            trap.ok("COMMIT");
            is_its_check.then_some(())
        });
        // The answer arrives.
        wait_until("the answer", || self.postgres.sql(&waits).is_empty());
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(self.writers(), ["first"]);
        pid
    }

    /// Returns who has written, after the first replica slept between its check and its write.
    fn run(&self) -> Vec<String> {
        self.postgres.sql(RECORD);
        let first = self.start("first");
        self.record();
        // Behind listeners the second waits. Directly, two would write at once if a program has no election.
        let waiting = self.proxies.as_ref().map(|_| self.start("second"));
        let sleeper = self.stop_in_its_check(&first);
        if let Some(proxies) = &self.proxies {
            proxies.first_sleeps();
        }
        let second = waiting.unwrap_or_else(|| self.start("second"));
        self.postgres.sql(self.program.expire);
        wait_until("the second to write", || self.writes_of_second() > 0);
        let said = first.supervisor.output().len();
        if let Some(proxies) = &self.proxies {
            proxies.proxies[0].0.resume();
        }
        signal(sleeper, Signal::CONT);
        if self.proxies.is_none() {
            wait_until("the late write", || self.writers().len() > 2);
            return self.writers();
        }
        wait_until("a refusal", || {
            assert_eq!(self.writers(), ["first", "second"], "a late write");
            let output = first.supervisor.output();
            REFUSED.iter().any(|why| output[said..].contains(why))
        });
        let before = self.writes_of_second();
        wait_until("the second to go on", || {
            self.writes_of_second() > before + 1
        });
        drop((first, second));
        self.writers()
    }
}

/// Runs it without a proxy, and with one beside each replica. `setup` prepares the server, and starts what else it
/// takes.
fn shows(setup: &dyn Fn(&Postgres) -> Vec<Running>, program: &Program<'_>) {
    let run = |fenced: bool| {
        let postgres = Postgres::start();
        let _helpers = setup(&postgres);
        let proxies = fenced.then(|| Proxies::start(&postgres));
        let race = Race {
            program,
            postgres: &postgres,
            proxies,
        };
        race.run()
    };
    assert_eq!(run(false)[..3], ["first", "second", "first"]);
    assert_eq!(run(true), ["first", "second"]);
}
