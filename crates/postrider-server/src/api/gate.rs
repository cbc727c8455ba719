//! Which requests are let in: those with a token; while the store has no tokens, those from this machine by a loopback name. A page
//! in a browser that rebinds its own name to 127.0.0.1 sends that name as Host, and other sites send their Origin.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::http::{Request, StatusCode, Uri};
use http::header::{AUTHORIZATION, HOST, HeaderMap, ORIGIN};
use postrider::store::{Keyring, Scope, TokenKey};
use tokio_util::sync::CancellationToken;

use super::authority::{self, Viewer};
use super::problem::Problem;
use super::token_cache::{Pass, TokenCache};

/// What a load balancer asks; the answers say nothing about messages.
const OPEN: [&str; 2] = ["/livez", "/readyz"];

/// What proxies say of those whom they speak for.
const FORWARDED: [&str; 4] = ["forwarded", "x-forwarded-for", "x-real-ip", "via"];

/// The route whose answer lasts until the client or the node ends it.
const LONG: &str = "/v1/tail";

pub(crate) struct ApiGate {
    keys: Arc<TokenCache>,
    /// Other machines reach this one; without a token none of them gets in.
    is_public: bool,
}

impl ApiGate {
    pub(crate) fn new(keyring: Arc<dyn Keyring>, keys: Vec<TokenKey>, listens: SocketAddr) -> Self {
        Self { keys: Arc::new(TokenCache::new(keyring, keys)), is_public: !listens.ip().is_loopback() }
    }

    /// Lets a request of a connection in, with the name of its sender's scope on it.
    pub(super) async fn admit<B>(
        &self,
        request: &mut Request<B>,
        connection: CancellationToken,
    ) -> Result<(), Problem> {
        if is_probe(request.uri()) {
            // Whatever the store says now: a probe is about this process.
            return if self.is_public || self.keys.were_any() { Ok(()) } else { check(request) };
        }
        let keys = self.keys.current().await?;
        if keys.is_empty() && !self.is_public {
            check(request)?;
            refuse_forwarded(request.headers())?;
            self.let_in(request, None, connection);
            return Ok(());
        }
        let token = bearer(request.headers()).ok_or_else(no_token)?;
        let opened = keys.iter().find(|key| token.starts_with(&key.prefix) && key.opens(token));
        let opened = opened.ok_or_else(no_token)?;
        if !authority::may(opened.scope, request.method(), request.uri().path()) {
            return Err(not_for_this(opened.scope));
        }
        request.extensions_mut().insert(Viewer(opened.scope));
        self.let_in(request, Some(&opened.prefix), connection);
        Ok(())
    }

    fn let_in<B>(&self, request: &mut Request<B>, prefix: Option<&str>, connection: CancellationToken) {
        if request.uri().path() == LONG {
            request.extensions_mut().insert(Pass::new(&self.keys, prefix, connection));
        }
    }
}

pub(super) fn is_probe(uri: &Uri) -> bool {
    OPEN.contains(&uri.path())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = single(headers, AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// The same for a missing, a wrong and a revoked one.
fn no_token() -> Problem {
    Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", "A token is needed")
        .detail("send a token as `authorization: Bearer …`; `postrider token create` makes one")
}

fn not_for_this(scope: Scope) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "The token is not for this")
        .detail(format!("its scope is {scope}"))
}

fn check<B>(request: &Request<B>) -> Result<(), Problem> {
    // In absolute form (`GET http://name/ HTTP/1.1`) the authority stands for the Host.
    let host = match request.uri().authority() {
        Some(authority) => Some(authority.as_str()),
        None => single(request.headers(), HOST),
    };
    if !host.is_some_and(is_loopback_authority) {
        return Err(refused("the Host header must be a loopback name or address, such as localhost:7171"));
    }
    if request.headers().contains_key(ORIGIN) {
        let origin = single(request.headers(), ORIGIN);
        if !origin.is_some_and(is_loopback_origin) {
            return Err(refused(
                "requests from other origins are refused: the Origin header is not loopback",
            ));
        }
    }
    Ok(())
}

/// Behind a proxy on this machine everybody's requests come from loopback, and may name it as their Host.
fn refuse_forwarded(headers: &HeaderMap) -> Result<(), Problem> {
    match FORWARDED.into_iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(refused(&format!(
            "{name} says that a proxy forwarded this request; `postrider token create` makes the token that is needed then"
        ))),
        None => Ok(()),
    }
}

fn refused(detail: &str) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, "forbidden", "Only this machine may use the API").detail(detail)
}

/// None when it is missing, given twice, or not text.
fn single(headers: &HeaderMap, name: http::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let value = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(value)
}

fn is_loopback_origin(origin: &str) -> bool {
    let Ok(uri) = origin.parse::<Uri>() else { return false };
    matches!(uri.scheme_str(), Some("http" | "https"))
        && uri.authority().is_some_and(|authority| is_loopback_authority(authority.as_str()))
}

fn is_loopback_authority(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((host, port)) if port.is_empty() || is_port(port) => host,
            _ => return false,
        },
        None => match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
            Some(_) => return false,
            None => authority,
        },
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(host: Option<&str>, origin: Option<&str>) -> bool {
        let mut request = Request::builder().uri("/livez");
        if let Some(host) = host {
            request = request.header(HOST, host);
        }
        if let Some(origin) = origin {
            request = request.header(ORIGIN, origin);
        }
        check(&request.body(()).expect("a request")).is_ok()
    }

    #[test]
    fn only_loopback_hosts_pass() {
        for good in ["localhost", "LOCALHOST:7171", "127.0.0.1:80", "127.9.9.9", "[::1]:7171", "[::1]"] {
            assert!(verdict(Some(good), None), "{good}");
        }
        let bad = [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil:80",
            "10.0.0.1",
            "",
            "[::2]:1",
            "a@localhost",
        ];
        for bad in bad {
            assert!(!verdict(Some(bad), None), "{bad}");
        }
        assert!(!verdict(None, None), "no Host at all");
    }

    #[test]
    fn only_loopback_origins_pass() {
        for good in ["http://localhost:3000", "https://127.0.0.1", "http://[::1]:8080"] {
            assert!(verdict(Some("localhost"), Some(good)), "{good}");
        }
        for bad in ["http://evil.example", "null", "file://", "http://localhost.evil.example", "localhost"] {
            assert!(!verdict(Some("localhost"), Some(bad)), "{bad}");
        }
    }
}
