//! Where an endpoint's URL leads: the origin to connect to, and the target to ask it for.

use http::HeaderValue;
use http::header::HOST;
use http::uri::{Authority, PathAndQuery};
use url::{Host, Position, Url};

use super::Request;
use crate::verdict::Failure;

/// Scheme, host and port: what a connection is made to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Origin {
    pub(super) tls: bool,
    pub(super) host: Host,
    pub(super) port: u16,
}

/// Path and query of the endpoint, taken apart so that a message can add to both.
pub(super) struct RequestTarget {
    pub(super) path: String,
    pub(super) query: Option<String>,
}

impl Origin {
    pub(super) fn of_config(url: &Url) -> Result<Self, Failure> {
        Self::of(url).ok_or_else(|| Failure::permanent("config.url: must be http or https"))
    }

    /// None when it is not a place that HTTP can go to.
    pub(super) fn of(url: &Url) -> Option<Self> {
        let tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let port = url.port_or_known_default().filter(|port| *port != 0)?;
        Some(Self { tls, host: url.host()?.to_owned(), port })
    }

    pub(super) fn scheme(&self) -> http::uri::Scheme {
        if self.tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP }
    }

    /// `host` or `host:port`, as the `host` header has it.
    pub(super) fn authority(&self) -> Result<HeaderValue, Failure> {
        let text = match (self.tls, self.port) {
            (true, 443) | (false, 80) => self.host.to_string(),
            (true | false, port) => format!("{}:{port}", self.host),
        };
        HeaderValue::try_from(text).map_err(|_| Failure::permanent("the host cannot be sent as a header"))
    }

    /// The URL of a request to this origin, to which a redirect is relative.
    pub(super) fn url(&self, target: &str) -> Option<Url> {
        Url::parse(&format!("{}://{}:{}{target}", self.scheme(), self.host, self.port)).ok()
    }
}

impl RequestTarget {
    pub(super) fn of(url: &Url) -> Self {
        Self { path: url.path().to_owned(), query: url.query().map(str::to_owned) }
    }

    pub(super) fn uri(&self) -> Result<http::Uri, Failure> {
        uri(&match &self.query {
            Some(query) => format!("{}?{query}", self.path),
            None => self.path.clone(),
        })
    }

    /// The suffix's path goes after the endpoint's path, its query after the endpoint's query.
    pub(super) fn with_suffix(&self, suffix: &str) -> Result<http::Uri, Failure> {
        let (more_path, more_query) = match suffix.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (suffix, None),
        };
        let mut target = match more_path {
            "" => self.path.clone(),
            _ => format!("{}{more_path}", self.path.trim_end_matches('/')),
        };
        let queries = [self.query.as_deref(), more_query];
        for (query, sign) in queries.into_iter().flatten().zip(['?', '&']) {
            target.push(sign);
            target.push_str(query);
        }
        uri(&target)
    }
}

/// In origin form: a path always, so a suffix can never name another host.
pub(super) fn uri(target: &str) -> Result<http::Uri, Failure> {
    let parsed = target.parse::<PathAndQuery>().ok().filter(|_| target.starts_with('/'));
    parsed.map(http::Uri::from).ok_or_else(|| Failure::permanent("the URL with its suffix cannot be sent"))
}

/// What of a URL is asked for.
pub(super) fn target_of(url: &Url) -> &str {
    &url[Position::BeforePath..Position::AfterQuery]
}

/// HTTP/2 has no `host` header: what it says goes into the URL.
pub(super) fn as_http2(mut request: Request, origin: &Origin) -> Request {
    let host = request.headers_mut().remove(HOST).or_else(|| origin.authority().ok());
    let mut parts = std::mem::take(request.uri_mut()).into_parts();
    parts.scheme = Some(origin.scheme());
    parts.authority = host.and_then(|host| Authority::try_from(host.as_bytes()).ok());
    // Without an authority there is no such URL, and hyper refuses the request.
    *request.uri_mut() = http::Uri::from_parts(parts).unwrap_or_default();
    request
}

/// Undoes [`as_http2`], for a request that was not sent after all.
pub(super) fn as_http1(mut request: Request) -> Request {
    let parts = std::mem::take(request.uri_mut()).into_parts();
    let host = parts.authority.and_then(|authority| HeaderValue::from_str(authority.as_str()).ok());
    if let Some(host) = host {
        request.headers_mut().insert(HOST, host);
    }
    *request.uri_mut() = parts.path_and_query.map_or_else(http::Uri::default, http::Uri::from);
    request
}
