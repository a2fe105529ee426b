//! What is answered to each request.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, WWW_AUTHENTICATE};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

use super::access::Access;
use super::readiness::Readiness;
use crate::console::Facts;
use crate::metrics::{self, classic};
use crate::timers::Timers;

/// A main thread that does nothing for so long is not alive.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);

/// What answers are made of.
pub(super) struct Answers {
    pub(super) access: Access,
    pub(super) registry: Registry,
    pub(super) facts: Arc<Facts>,
    pub(super) readiness: Readiness,
    /// Of the main thread, which accepts connections and declares tokens.
    pub(super) main: Timers,
}

/// Whether the sender of a request may be told more than a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rights {
    None,
    Read,
}

impl Answers {
    pub(super) async fn to(
        &self,
        request: &Request<Incoming>,
    ) -> Result<Response<Full<Bytes>>, Infallible> {
        let rights = match self.access.admits(request.headers()) {
            true => Rights::Read,
            false => Rights::None,
        };
        let path = request.uri().path();
        // A probe of a load balancer has no token: it sees the status, and nothing else.
        let is_probe = matches!(path, "/healthz" | "/readyz");
        if rights == Rights::None && !is_probe {
            let mut answer = plain(StatusCode::UNAUTHORIZED, "a bearer token is needed\n");
            let scheme = HeaderValue::from_static("Bearer");
            answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
            return Ok(answer);
        }
        let answer = match path {
            _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
                let methods = HeaderValue::from_static("GET, HEAD");
                answer.headers_mut().insert(ALLOW, methods);
                answer
            }
            "/metrics" => self.metrics(),
            "/healthz" => self.health().await,
            "/readyz" => self.ready(rights).await,
            _ => match path.strip_prefix("/api/v1/") {
                Some(table) => self.table(table, request.headers()).await,
                None => nothing_there(),
            },
        };
        Ok(answer)
    }

    /// Names of users and their statements are in it, so no page in a browser on this machine may read it.
    async fn table(&self, name: &str, fields: &HeaderMap) -> Response<Full<Bytes>> {
        if !self.access.is_meant(fields) {
            return plain(
                StatusCode::MISDIRECTED_REQUEST,
                "the Host of the request is not this machine\n",
            );
        }
        match self.facts.json(name).await {
            Some(Ok(json)) => respond(StatusCode::OK, "application/json", json),
            Some(Err(why)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            None => nothing_there(),
        }
    }

    fn metrics(&self) -> Response<Full<Bytes>> {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "writing metrics");
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "no metrics\n");
        }
        respond(StatusCode::OK, metrics::CONTENT_TYPE, classic(&text))
    }

    /// This thread lives, or there were no answer. The main one has to show it.
    async fn health(&self) -> Response<Full<Bytes>> {
        let main = self.main.spawn(async {});
        match tokio::time::timeout(ALIVE_WITHIN, main).await {
            Ok(Ok(())) => plain(StatusCode::OK, "alive\n"),
            _ => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the main thread does not answer\n",
            ),
        }
    }

    async fn ready(&self, rights: Rights) -> Response<Full<Bytes>> {
        let Some(why_not) = self.readiness.why_not().await else {
            return plain(StatusCode::OK, "ready\n");
        };
        let text = match rights {
            Rights::Read => format!("not ready: {why_not}\n"),
            Rights::None => String::from("not ready\n"),
        };
        plain(StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

fn nothing_there() -> Response<Full<Bytes>> {
    let paths = "there are /metrics, /healthz, /readyz and /api/v1/ with scopes, sessions, takeovers, proxies and \
                 rejections\n";
    plain(StatusCode::NOT_FOUND, paths)
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
