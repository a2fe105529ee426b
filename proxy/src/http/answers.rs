//! Answers to requests.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Request, Response, StatusCode};
use pgpalisade_rejection_log::rfc3339;
use pgpalisade_tls::percent_decode;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rustix::system::uname;
use serde_json::{Value, json};

use super::access::Access;
use super::exposition;
use super::picture::Pictures;
use super::readiness::Readiness;
use crate::console::{Facts, OVER_HTTP};

/// The main thread counts as dead after this time without an answer.
const ALIVE_WITHIN: Duration = Duration::from_secs(2);

/// <https://fetch.spec.whatwg.org/#cross-origin-resource-policy-header>
const RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
/// The page may contact only this proxy, and no other page may frame it.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                           base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Body = Full<Bytes>;

pub(super) struct Answers {
    pub(super) registry: Registry,
    pub(super) access: Access,
    pub(super) facts: Arc<Facts>,
    pub(super) readiness: Readiness,
    pub(super) pictures: Pictures,
}

impl Answers {
    pub(super) async fn to(
        &self,
        request: &Request<Incoming>,
        is_certified: bool,
    ) -> Result<Response<Body>, Infallible> {
        let is_admitted = self.access.admits(is_certified, request.headers());
        let path = request.uri().path();
        if !is_admitted && let Some(refusal) = refusal(&self.access, path) {
            return Ok(refusal);
        }
        let answer = match path {
            _ if !matches!(*request.method(), Method::GET | Method::HEAD) => {
                let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is answered\n");
                let methods = HeaderValue::from_static("GET, HEAD");
                answer.headers_mut().insert(ALLOW, methods);
                answer
            }
            "/" => page(
                "text/html; charset=utf-8",
                include_str!("dashboard/index.html"),
            ),
            "/dashboard.css" => page("text/css", include_str!("dashboard/dashboard.css")),
            "/dashboard.js" => page("text/javascript", include_str!("dashboard/dashboard.js")),
            "/metrics" => self.metrics(),
            "/healthz" => self.health().await,
            "/readyz" => self.ready(is_admitted).await,
            "/leader" => self.leader(request.uri().query()),
            _ => match path.strip_prefix("/api/v1/") {
                Some(_) if !self.access.is_meant(request.headers()) => not_meant(),
                Some("picture") => self.picture().await,
                Some(table) => self.table(table).await,
                None => nothing_there(),
            },
        };
        Ok(answer)
    }

    async fn picture(&self) -> Response<Body> {
        let picture = self.pictures.latest(&self.facts, &self.readiness).await;
        respond(StatusCode::OK, "application/json", picture)
    }

    async fn table(&self, name: &str) -> Response<Body> {
        match self.facts.rows(name).await {
            Some(Ok(rows)) => {
                let json = rows.collect::<Value>().to_string();
                respond(StatusCode::OK, "application/json", json)
            }
            Some(Err(why)) => plain(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
            None => nothing_there(),
        }
    }

    fn metrics(&self) -> Response<Body> {
        let mut text = String::new();
        if let Err(error) = encode(&mut text, &self.registry) {
            tracing::error!(%error, "writing metrics");
            return plain(StatusCode::INTERNAL_SERVER_ERROR, "no metrics\n");
        }
        respond(
            StatusCode::OK,
            exposition::CONTENT_TYPE,
            exposition::classic(&text),
        )
    }

    /// The main thread, which accepts connections and declares tokens, must prove that it lives.
    async fn health(&self) -> Response<Body> {
        let main = self.facts.shared.timers.spawn(async {});
        match tokio::time::timeout(ALIVE_WITHIN, main).await {
            Ok(Ok(())) => plain(StatusCode::OK, "alive\n"),
            _ => plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "the main thread does not answer\n",
            ),
        }
    }

    async fn ready(&self, is_admitted: bool) -> Response<Body> {
        let Some(why_not) = self.readiness.why_not().await else {
            return plain(StatusCode::OK, "ready\n");
        };
        let text = if is_admitted {
            format!("not ready: {why_not}\n")
        } else {
            String::from("not ready\n")
        };
        plain(StatusCode::SERVICE_UNAVAILABLE, text)
    }

    /// The form of Kubernetes' leader-elector sidecar, which tells the name only.
    fn leader(&self, query: Option<&str>) -> Response<Body> {
        let named = |query: &str| percent_decode(query.strip_prefix("scope=")?);
        let scope = query.map(|query| named(query).filter(|_| !query.contains('&')));
        if scope == Some(None) {
            return plain(StatusCode::BAD_REQUEST, "the only parameter is scope\n");
        }
        let scope = scope.flatten();
        let leaderships = self.facts.leaderships.all();
        let mut asked = leaderships.iter().filter(|one| {
            scope
                .as_deref()
                .is_none_or(|scope| one.scope().as_str() == scope)
        });
        let Some(term) = asked.find_map(|one| one.term()) else {
            return plain(
                StatusCode::SERVICE_UNAVAILABLE,
                "this proxy does not lead\n",
            );
        };
        let leader = json!({
            "name": uname().nodename().to_string_lossy(),
            "scope": term.scope.as_str(),
            "token": term.token.get(),
            "since": rfc3339(term.since),
        });
        respond(StatusCode::OK, "application/json", leader.to_string())
    }
}

/// The answer to a client without rights, if it differs.
fn refusal(access: &Access, path: &str) -> Option<Response<Body>> {
    let what_is_needed = match (access.takes_certificates, &access.token_file, path) {
        // A load balancer's probe has no token or certificate: it sees only the status.
        (_, _, "/healthz" | "/readyz") => return None,
        (true, None, _) => {
            return Some(plain(
                StatusCode::FORBIDDEN,
                "a client certificate is needed, signed by http_client_ca\n",
            ));
        }
        // The page asks for the token.
        (_, _, "/" | "/dashboard.css" | "/dashboard.js") => return None,
        (false, ..) => "a bearer token is needed\n",
        (true, ..) => "a bearer token or a client certificate is needed\n",
    };
    let mut answer = plain(StatusCode::UNAUTHORIZED, what_is_needed);
    let scheme = HeaderValue::from_static("Bearer");
    answer.headers_mut().insert(WWW_AUTHENTICATE, scheme);
    Some(answer)
}

/// No Web page may read tables through a browser on this machine.
fn not_meant() -> Response<Body> {
    plain(
        StatusCode::MISDIRECTED_REQUEST,
        "the Host of the request is not this machine\n",
    )
}

fn nothing_there() -> Response<Body> {
    let paths = format!(
        "the paths are / (the dashboard), /metrics, /healthz, /readyz, /leader and /api/v1/ with {} and picture\n",
        OVER_HTTP.join(", ")
    );
    plain(StatusCode::NOT_FOUND, paths)
}

fn plain(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    respond(status, "text/plain; charset=utf-8", text)
}

fn page(content_type: &'static str, text: &'static str) -> Response<Body> {
    let mut response = respond(StatusCode::OK, content_type, text);
    let fields = response.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
    ] {
        fields.insert(name, HeaderValue::from_static(value));
    }
    response
}

fn respond(
    status: StatusCode,
    content_type: &'static str,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    let fields = response.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    fields.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A browser shows its certificate for any page: only our own may read an answer.
    fields.insert(RESOURCE_POLICY, HeaderValue::from_static("same-origin"));
    response
}
