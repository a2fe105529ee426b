//! An HTTP client that sends its requests by hand and reads metrics.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustls::StreamOwned;

use crate::machine::{self, PATIENCE};
use crate::postgres::Postgres;
use crate::proxy::{Options, Proxy};
use crate::tls_client::TlsClient;

#[derive(Debug, Clone, Copy)]
pub struct Http {
    address: SocketAddr,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    #[track_caller]
    fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status");
        Self {
            status: status.parse().expect("a number"),
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }
}

impl Http {
    pub fn free() -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], machine::free_port()));
        Self { address }
    }

    pub fn with_proxy(postgres: &Postgres) -> (Self, Proxy) {
        let http = Self::free();
        (http, Proxy::start_with(http.options(postgres)))
    }

    pub fn options(self, postgres: &Postgres) -> Options {
        Options::new(postgres).flag("--http", &self.address.to_string())
    }

    pub fn port(self) -> u16 {
        self.address.port()
    }

    pub fn connect(self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        Ok(stream)
    }

    /// Sends a request unchanged and reads until the proxy closes.
    pub fn send(self, request: &str) -> io::Result<String> {
        let mut stream = self.connect()?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Response to a request with additional fields, each with its line end.
    #[track_caller]
    pub fn ask(self, method: &str, path: &str, fields: &str) -> Answer {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
        Answer::parse(&self.send(&request).expect("an answer"))
    }

    /// Reads to the end, because TLS reports truncation, and only the answer shows whether the proxy accepts the
    /// client's certificate.
    pub fn get_tls(self, client: &TlsClient, path: &str, fields: &str) -> io::Result<Answer> {
        let mut stream = StreamOwned::new(client.connection(), self.connect()?);
        write!(stream, "GET {path} HTTP/1.1\r\n{fields}\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(Answer::parse(&answer))
    }

    #[track_caller]
    pub fn get(self, path: &str) -> Answer {
        self.ask("GET", path, "")
    }

    #[track_caller]
    pub fn metrics(self) -> Metrics {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{answer:?}");
        Metrics::parse(answer.body)
    }
}

#[derive(Debug)]
pub struct Metrics {
    pub text: String,
    samples: BTreeMap<String, f64>,
}

impl Metrics {
    fn parse(text: String) -> Self {
        let sample = |line: &str| {
            let (series, value) = line.rsplit_once(' ').expect("a series and its value");
            (series.to_owned(), value.parse().expect("a number"))
        };
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        Self {
            samples: lines.map(sample).collect(),
            text,
        }
    }

    /// Value of a series, named with all its labels as written; 0 if missing.
    pub fn of(&self, series: &str) -> f64 {
        self.samples.get(series).copied().unwrap_or_default()
    }

    pub fn families(&self) -> Vec<&str> {
        let types = self.text.lines();
        let types = types.filter_map(|line| line.strip_prefix("# TYPE "));
        types.filter_map(|line| line.split(' ').next()).collect()
    }
}
