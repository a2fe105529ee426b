//! A store that two proxy processes share: the embedded store of the test process, reached over a unix socket.
//!
//! The embedded store serves one process. For tests with two proxies the test holds it and answers for it:
//! [`Hub`] is the side of the test, [`SharedStore`] the side of a proxy. Each call is one connection with one line
//! of JSON each way.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use pgpalisade_authority::{
    Answer, Authority, AuthorityError, AuthorityId, Backend, Change, Cluster, Declaration,
    Declared, Drained, Embedded, Enrolled, Mark, Outcome, Registered, Scope, Token, Watch,
};
use serde_json::{Value, json};

/// Answers for an embedded store on a unix socket, until the process ends.
#[derive(Debug)]
pub struct Hub {
    socket: PathBuf,
}

impl Hub {
    /// Opens the store in `dir` and listens on `dir/socket`.
    pub fn start(dir: &Path) -> Self {
        let store = Embedded::open(&dir.join("store")).expect("open the embedded store");
        let socket = dir.join("socket");
        let listener = UnixListener::bind(&socket).expect("listen on a unix socket");
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let store = store.clone();
                let stream = stream.expect("accept on a unix socket");
                std::thread::spawn(move || answer(&store, &stream));
            }
        });
        Self { socket }
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

fn answer(store: &Embedded, mut stream: &UnixStream) {
    let mut line = String::new();
    // A proxy that died while it asked is no concern of the store.
    if BufReader::new(stream).read_line(&mut line).is_err() || line.is_empty() {
        return;
    }
    let request: Value = serde_json::from_str(&line).expect("a request is JSON");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let reply = match runtime.block_on(serve(store, &request)) {
        Ok(value) => json!({ "ok": value }),
        Err(error) => json!({ "error": error.to_string() }),
    };
    let _died_before_the_answer = stream.write_all(format!("{reply}\n").as_bytes());
}

async fn serve(store: &Embedded, request: &Value) -> Result<Value, AuthorityError> {
    let scope = || Scope::new(text(&request["scope"])).expect("a scope");
    Ok(match text(&request["call"]) {
        "identity" => json!(store.identity().to_bytes()),
        "declare" => declare(store, request).await?,
        "enrol" => match store.enrol(cluster(&request["cluster"])).await? {
            Enrolled::Accepted => Value::Null,
            Enrolled::Refused { recorded } => json!(recorded),
        },
        "cluster" => json!(store.cluster().await?),
        "recover" => {
            let marks = list(&request["marks"], |pair| {
                (self::scope(&pair[0]), mark(&pair[1]))
            });
            let cluster = cluster(&request["cluster"]);
            store.recover(cluster, &marks).await.map(|()| Value::Null)?
        }
        "drained" => match store
            .drained(
                &scope(),
                token(&request["token"]),
                &list(&request["gone"], backend),
            )
            .await?
        {
            Drained::Complete => Value::Null,
            Drained::Left(left) => left.iter().map(from_registered).collect(),
        },
        "release" => store
            .release(backend(&request["backend"]))
            .await
            .map(|()| Value::Null)?,
        "forget" => store
            .forget(&list(&request["gone"], backend))
            .await
            .map(|()| Value::Null)?,
        "sessions" => {
            let sessions = store.sessions().await?;
            sessions
                .iter()
                .map(|(scope, session)| json!([scope.as_str(), from_registered(session)]))
                .collect()
        }
        "marks" => store
            .marks()
            .await?
            .iter()
            .map(|(scope, mark)| json!([scope.as_str(), from_mark(mark)]))
            .collect(),
        other => panic!("unknown call {other}"),
    })
}

async fn declare(store: &Embedded, request: &Value) -> Result<Value, AuthorityError> {
    let declaration = Declaration {
        scope: &scope(&request["scope"]),
        token: token(&request["token"]),
        backend: backend(&request["backend"]),
        cluster: cluster(&request["cluster"]),
        by: text(&request["by"]),
    };
    Ok(match store.declare(&declaration).await? {
        Declared::Stale { mark } => json!({ "stale": from_mark(&mark) }),
        Declared::OtherCluster { recorded } => json!({ "other": recorded }),
        Declared::Accepted {
            mark,
            outcome,
            lower,
        } => json!({
            "mark": from_mark(&mark),
            "raised": outcome == Outcome::Raised,
            "lower": lower.iter().map(from_registered).collect::<Vec<_>>(),
        }),
    })
}

/// The store as a proxy sees it.
#[derive(Debug)]
pub struct SharedStore {
    socket: PathBuf,
    identity: AuthorityId,
}

impl SharedStore {
    /// Asks the hub who it is.
    pub fn open(socket: &Path) -> Self {
        Self::try_open(socket).expect("the hub answers")
    }

    /// As [`Self::open`], where it may be cut off.
    ///
    /// # Errors
    /// Why it does not answer.
    pub fn try_open(socket: &Path) -> Result<Self, String> {
        let identity = ask(socket, &json!({ "call": "identity" }))?;
        let bytes: Vec<u8> = list(&identity, |byte| {
            u8::try_from(byte.as_u64().expect("a byte")).expect("a byte")
        });
        let identity = AuthorityId::from_bytes(bytes.try_into().expect("16 bytes"));
        Ok(Self {
            socket: socket.to_path_buf(),
            identity,
        })
    }

    fn call<T: Send + 'static>(&self, request: Value, read: fn(&Value) -> T) -> Answer<'_, T> {
        let socket = self.socket.clone();
        Box::pin(async move {
            let asked = tokio::task::spawn_blocking(move || ask(&socket, &request)).await;
            let reply = asked.map_err(|error| AuthorityError::Unavailable(error.to_string()))?;
            reply
                .map(|value| read(&value))
                .map_err(AuthorityError::Unavailable)
        })
    }
}

fn ask(socket: &Path, request: &Value) -> Result<Value, String> {
    let exchange = || -> std::io::Result<String> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    };
    let line = exchange().map_err(|error| error.to_string())?;
    let mut reply: Value = serde_json::from_str(&line).map_err(|error| error.to_string())?;
    match reply.get("error") {
        Some(error) => Err(text(error).to_owned()),
        None => Ok(reply["ok"].take()),
    }
}

impl Authority for SharedStore {
    fn identity(&self) -> AuthorityId {
        self.identity
    }

    fn declare<'a>(&'a self, declaration: &'a Declaration<'a>) -> Answer<'a, Declared> {
        let request = json!({
            "call": "declare",
            "scope": declaration.scope.as_str(),
            "token": declaration.token.get(),
            "backend": from_backend(&declaration.backend),
            "cluster": declaration.cluster,
            "by": declaration.by,
        });
        self.call(request, |reply| {
            match (reply.get("stale"), reply.get("other")) {
                (Some(stale), _) => Declared::Stale { mark: mark(stale) },
                (_, Some(other)) => Declared::OtherCluster {
                    recorded: optional(other),
                },
                _ => Declared::Accepted {
                    mark: mark(&reply["mark"]),
                    outcome: if reply["raised"] == true {
                        Outcome::Raised
                    } else {
                        Outcome::Current
                    },
                    lower: list(&reply["lower"], registered),
                },
            }
        })
    }

    fn enrol(&self, cluster: Cluster) -> Answer<'_, Enrolled> {
        let request = json!({ "call": "enrol", "cluster": cluster });
        self.call(request, |reply| match optional(reply) {
            None => Enrolled::Accepted,
            Some(recorded) => Enrolled::Refused { recorded },
        })
    }

    fn cluster(&self) -> Answer<'_, Option<Cluster>> {
        self.call(json!({ "call": "cluster" }), optional)
    }

    fn recover<'a>(&'a self, cluster: Cluster, marks: &'a [(Scope, Mark)]) -> Answer<'a, ()> {
        let marks: Vec<Value> = marks
            .iter()
            .map(|(scope, mark)| json!([scope.as_str(), from_mark(mark)]))
            .collect();
        let request = json!({ "call": "recover", "cluster": cluster, "marks": marks });
        self.call(request, |_| ())
    }

    /// Looks every few milliseconds.
    fn watch(&self) -> Watch {
        let (sender, watch) = tokio::sync::mpsc::channel(1024);
        let socket = self.socket.clone();
        std::thread::spawn(move || {
            let mut known = Value::Null;
            // A hub that does not answer may be back at the next look.
            while !sender.is_closed() {
                let seen = ask(&socket, &json!({ "call": "marks" })).unwrap_or(known.clone());
                for pair in list(&seen, Value::clone) {
                    let is_new = known.as_array().is_none_or(|known| !known.contains(&pair));
                    let change = Change::Mark(scope(&pair[0]), mark(&pair[1]));
                    if is_new && sender.blocking_send(change).is_err() {
                        return;
                    }
                }
                known = seen;
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        watch
    }

    fn drained<'a>(
        &'a self,
        scope: &'a Scope,
        token: Token,
        gone: &'a [Backend],
    ) -> Answer<'a, Drained> {
        let gone: Vec<Value> = gone.iter().map(from_backend).collect();
        let request = json!({ "call": "drained", "scope": scope.as_str(), "token": token.get(), "gone": gone });
        self.call(request, |reply| match reply {
            Value::Null => Drained::Complete,
            left => Drained::Left(list(left, registered)),
        })
    }

    fn release(&self, backend: Backend) -> Answer<'_, ()> {
        self.call(
            json!({ "call": "release", "backend": from_backend(&backend) }),
            |_| (),
        )
    }

    fn forget<'a>(&'a self, gone: &'a [Backend]) -> Answer<'a, ()> {
        let gone: Vec<Value> = gone.iter().map(from_backend).collect();
        self.call(json!({ "call": "forget", "gone": gone }), |_| ())
    }

    fn sessions(&self) -> Answer<'_, Vec<(Scope, Registered)>> {
        self.call(json!({ "call": "sessions" }), |reply| {
            list(reply, |pair| (scope(&pair[0]), registered(&pair[1])))
        })
    }

    fn marks(&self) -> Answer<'_, Vec<(Scope, Mark)>> {
        self.call(json!({ "call": "marks" }), |reply| {
            list(reply, |pair| (scope(&pair[0]), mark(&pair[1])))
        })
    }
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn list<T>(value: &Value, read: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().expect("a list").iter().map(read).collect()
}

fn scope(value: &Value) -> Scope {
    Scope::new(text(value)).expect("a scope")
}

fn token(value: &Value) -> Token {
    Token::new(value.as_u64().expect("a token")).expect("a token")
}

fn cluster(value: &Value) -> Cluster {
    optional(value).expect("a cluster")
}

fn optional(value: &Value) -> Option<Cluster> {
    serde_json::from_value(value.clone()).expect("a cluster or null")
}

fn backend(value: &Value) -> Backend {
    let pid = i32::try_from(value[0].as_i64().expect("a pid")).expect("a pid");
    Backend {
        pid,
        started_us: value[1].as_i64().expect("a time"),
    }
}

fn from_backend(backend: &Backend) -> Value {
    json!([backend.pid, backend.started_us])
}

fn mark(value: &Value) -> Mark {
    Mark {
        token: token(&value[0]),
        raised_at: value[1].as_i64().expect("a time"),
        raised_by: text(&value[2]).to_owned(),
    }
}

fn from_mark(mark: &Mark) -> Value {
    json!([mark.token.get(), mark.raised_at, mark.raised_by])
}

fn registered(value: &Value) -> Registered {
    Registered {
        backend: backend(&value[0]),
        token: token(&value[1]),
        since: value[2].as_i64().expect("a time"),
    }
}

fn from_registered(session: &Registered) -> Value {
    json!([
        from_backend(&session.backend),
        session.token.get(),
        session.since
    ])
}
