//! What the suites in Rust share: the scenarios that are SQL only, and how a suite reports.

use std::error::Error;
use std::panic::catch_unwind;
use std::process::Command;
use std::sync::{LazyLock, Mutex};

use tokio::runtime::{Builder, Runtime};

pub type Cell = Result<&'static str, Box<dyn Error>>;
pub type Scenario = (&'static str, fn() -> Cell);

/// The scenario that runs.
static NOW: Mutex<&str> = Mutex::new("");

/// How to do with a driver what all can do.
pub trait Connection: Sized {
    type Error: Error + 'static;

    fn open(token: Option<&str>) -> Result<Self, Self::Error>;

    fn run(&mut self, sql: &str) -> Result<(), Self::Error>;

    /// SQLSTATE, DETAIL and HINT.
    fn told(error: &Self::Error) -> Option<[&str; 3]>;

    fn transaction(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<(), Self::Error>,
    ) -> Result<(), Self::Error> {
        self.run("BEGIN")?;
        match work(self) {
            Ok(()) => self.run("COMMIT"),
            Err(error) => self.run("ROLLBACK").and(Err(error)),
        }
    }
}

pub fn env(name: &str) -> String {
    std::env::var(name).unwrap()
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    static RUNTIME: LazyLock<Runtime> =
        LazyLock::new(|| Builder::new_current_thread().enable_all().build().unwrap());
    RUNTIME.block_on(future)
}

/// Deposes everybody, and returns the token of the new leader.
pub fn takeover(when: &str) -> String {
    let mut command = Command::new(env("TAKEOVER"));
    let output = command.args(when.split_whitespace()).output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

pub fn write(what: &str) -> String {
    let now = *NOW.lock().unwrap();
    format!("INSERT INTO jobs VALUES ('{now}', '{what}')")
}

pub fn slow() -> String {
    let now = *NOW.lock().unwrap();
    format!("INSERT INTO jobs SELECT '{now}', 'lost' FROM pg_sleep(10)")
}

pub fn batch() -> String {
    [write("lost"), slow(), write("lost")].join("; ")
}

/// How the driver tells of the fence: the SQLSTATE, (the SQLSTATE) if only the message has it, or lost.
pub fn refused<C: Connection>(result: Result<(), C::Error>) -> Cell {
    let error = result.err().ok_or("nothing was refused")?;
    let text = error.to_string();
    for (code, hidden) in [
        ("PF001", "(PF001)"),
        ("PF002", "(PF002)"),
        ("08007", "(08007)"),
    ] {
        if C::told(&error).is_some_and(|[state, ..]| state == code) {
            return Ok(code);
        }
        if text.contains(&format!("{code}: ")) {
            return Ok(hidden);
        }
    }
    match ["clos", "EOF", "reset", "Broken pipe"]
        .iter()
        .any(|word| text.contains(word))
    {
        true => Ok("lost"),
        false => Err(error.into()),
    }
}

/// A connection that holds the token and has written.
pub fn leader<C: Connection>() -> Result<C, C::Error> {
    let mut c = C::open(Some(&takeover("")))?;
    c.run(&write("kept"))?;
    Ok(c)
}

/// Declares after connecting, and writes.
pub fn follow<C: Connection>(mut c: C) -> Cell {
    c.run(&format!("SET fencing.token = {}", takeover("")))?;
    c.run(&write("kept"))?;
    Ok("ok")
}

/// In one pool, the first transactions with the new token fail at most once for each of its connections.
pub fn after_takeover<C: Connection>(
    mut transaction: impl FnMut(&str, &str) -> Result<(), C::Error>,
) -> Cell {
    let old = takeover("");
    transaction(&old, "kept")?;
    transaction(&old, "kept")?;
    let token = takeover("");
    refused::<C>(transaction(&old, "lost"))?;
    for cell in ["ok", "after 1"] {
        if transaction(&token, "kept").is_ok() {
            return Ok(cell);
        }
    }
    Ok(transaction(&token, "kept").map(|()| "after 2")?)
}

/// A statement that the driver keeps.
pub fn prepared<C: Connection>(insert: impl Fn(&mut C, &str) -> Result<(), C::Error>) -> Cell {
    let mut c = C::open(Some(&takeover("")))?;
    insert(&mut c, "kept")?;
    insert(&mut c, "kept")?;
    let token = takeover("");
    refused::<C>(insert(&mut c, "lost"))?;
    if c.run(&format!("SET fencing.token = {token}")).is_err() {
        c = C::open(Some(&token))?;
    }
    insert(&mut c, "kept")?;
    insert(&mut c, "kept")?;
    Ok("ok")
}

fn local<C: Connection>(c: &mut C, token: &str, what: &str) -> Result<(), C::Error> {
    c.transaction(|c| {
        c.run(&format!("SET LOCAL fencing.token = {token}"))?;
        c.run(&write(what))
    })
}

fn common<C: Connection>() -> [Scenario; 11] {
    [
        // In transaction mode nothing that the driver sets for itself keeps the server connection.
        ("shares", || {
            let _leader = leader::<C>()?;
            Ok(match takeover("keeps").as_str() {
                "0" => "ok",
                _ => "keeps",
            })
        }),
        ("string", || Ok(leader::<C>().map(|_| "ok")?)),
        ("set", || follow(C::open(None)?)),
        ("local", || {
            let mut c = C::open(None)?;
            local(&mut c, &takeover(""), "kept")?;
            assert!(refused::<C>(c.run(&write("lost")))?.contains("PF002"));
            Ok("ok")
        }),
        ("old-string", || {
            let old = takeover("");
            leader::<C>()?;
            refused::<C>(C::open(Some(&old)).map(drop))
        }),
        ("old-set", || {
            let (old, token, mut c) = (takeover(""), takeover(""), C::open(None)?);
            let cell = refused::<C>(c.run(&format!("SET fencing.token = {old}")))?;
            refused::<C>(c.run(&write("lost")))?;
            c.run(&format!("SET fencing.token = {token}"))?;
            c.run(&write("kept"))?;
            Ok(cell)
        }),
        ("old-local", || {
            let (old, token, mut c) = (takeover(""), takeover(""), C::open(None)?);
            let cell = refused::<C>(local(&mut c, &old, "lost"))?;
            local(&mut c, &token, "kept")?;
            Ok(cell)
        }),
        ("idle", || {
            let mut c = leader::<C>()?;
            takeover("");
            refused::<C>(c.run(&write("lost")))
        }),
        ("transaction", || {
            refused::<C>(leader::<C>()?.transaction(|c| {
                c.run(&write("lost"))?;
                takeover("");
                Ok(())
            }))
        }),
        ("statement", || {
            let mut c = leader::<C>()?;
            takeover("asleep");
            refused::<C>(c.run(&slow()))
        }),
        ("fields", || {
            let (old, mut c) = (takeover(""), leader::<C>()?);
            let error = c.run(&format!("SET fencing.token = {old}")).err().unwrap();
            let [state, detail, hint] = C::told(&error).unwrap();
            assert!(detail.starts_with("The mark of scope "));
            assert!(hint.starts_with("This process is no longer the leader. "));
            Ok(if state == "PF001" {
                "ok"
            } else {
                "no SQLSTATE"
            })
        }),
    ]
}

/// Runs the scenarios, or those that the command line names. The driver has nothing like those of `without`.
pub fn run<C: Connection>(driver: &str, own: &[Scenario], without: &str) {
    println!("version: {driver}");
    let only: Vec<String> = std::env::args().skip(1).collect();
    for &(now, scenario) in common::<C>().iter().chain(own) {
        if !only.is_empty() && !only.iter().any(|one| one == now) {
            continue;
        }
        *NOW.lock().unwrap() = now;
        match catch_unwind(scenario) {
            Ok(Ok(cell)) => println!("{now}: {cell}"),
            Ok(Err(error)) => println!("{now}: FAILED {}", error.to_string().replace('\n', " ")),
            Err(_) => println!("{now}: FAILED by a panic, which the log has"),
        }
    }
    for name in without.split_whitespace() {
        println!("{name}: n/a {driver} has none");
    }
}
