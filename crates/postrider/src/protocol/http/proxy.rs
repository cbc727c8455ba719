//! A proxy between the node and the receiver. Every receiver, http or https, is reached through a tunnel (CONNECT): what
//! is sent and answered belongs to the receiver, and what the proxy itself answers can never be taken for its answer.

use std::fmt;

use bytes::Bytes;
use http::header::{HOST, PROXY_AUTHORIZATION, USER_AGENT};
use http::uri::Authority;
use http::{HeaderValue, Method, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio_util::task::AbortOnDropHandle;
use url::Url;

use super::answer::{lost, named};
use super::auth::{USERNAME, basic};
use super::config::{self, NAME_BYTES_MAX, URL_BYTES_MAX, URL_CHARACTERS};
use super::connector::HEADER_BYTES_MAX;
use super::encoding::owned;
use super::origin::{self, Origin};
use super::request::AGENT;
use crate::error::Invalid;
use crate::net::Dialer;
use crate::protocol::keys::{ConfigKey, ValueKind};
use crate::protocol::rules::{Must, NO_CONTROL, Rule};
use crate::protocol::tls::TlsConfig;
use crate::protocol::{Relation, Then};
use crate::sink::secret::Secrets;
use crate::sink::{Environment, Undelivered};
use crate::verdict::Failure;

pub(super) const PROXY: ConfigKey = ConfigKey::new(
    "proxy",
    ValueKind::Object(&[
        ConfigKey::new("url", ValueKind::Text { bytes_max: URL_BYTES_MAX, rules: PROXY_URL }).required(),
        ConfigKey::new("username", ValueKind::Text { bytes_max: NAME_BYTES_MAX, rules: USERNAME }),
        ConfigKey::new("password", ValueKind::Secret(&[NO_CONTROL])),
    ]),
);

pub(super) const PROXY_USERNAME_NEEDS_PASSWORD: Relation = Relation {
    given: "proxy.username",
    is: None,
    then: Then::Needs("proxy.password"),
    says: "needs config.proxy.password",
};
pub(super) const PROXY_PASSWORD_NEEDS_USERNAME: Relation = Relation {
    given: "proxy.password",
    is: None,
    then: Then::Needs("proxy.username"),
    says: "needs config.proxy.username",
};

const PROXY_URL: &[Rule] = &[
    URL_CHARACTERS,
    Rule::new(
        Must::BeUrl(&["http", "https"]),
        "must not contain a user name or password; use config.proxy.username and config.proxy.password",
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProxyConfig {
    #[serde(deserialize_with = "config::url")]
    url: Url,
    username: Option<String>,
    password: Option<String>,
}

impl ProxyConfig {
    pub(super) fn check(&self) -> Result<(), Invalid> {
        match origin::target_of(&self.url) {
            "/" => Ok(()),
            _ => Err(Invalid::new("config.proxy.url", "must not have a path or query")),
        }
    }

    pub(super) fn texts_made_of(&self, secret: &str) -> Option<String> {
        self.username.as_ref().map(|username| basic(username, secret))
    }
}

/// Bytes go to the receiver as they are.
pub(super) type Tunnel = TokioIo<Upgraded>;

pub(super) struct HttpProxy {
    origin: Origin,
    dialer: Dialer,
    authorization: Option<HeaderValue>,
}

impl HttpProxy {
    pub(super) fn new(
        config: &ProxyConfig,
        tls: &TlsConfig,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let origin = Origin::of(&config.url)
            .ok_or_else(|| Failure::permanent("config.proxy.url: must be http or https"))?;
        let authorization = match (&config.username, &config.password) {
            (Some(username), Some(password)) => {
                let password = Secrets::new(environment).reveal(password)?;
                let mut value = owned(format!("Basic {}", basic(username, &password)));
                value.set_sensitive(true);
                Some(value)
            }
            (Some(_) | None, _) => None,
        };
        // The certificate of the endpoint is for its receiver.
        let dialer = Dialer::new(&tls.without_identity(), &["http/1.1"], environment)?;
        if origin.tls {
            dialer.prepare_tls()?;
        }
        Ok(Self { origin, dialer, authorization })
    }

    pub(super) async fn tunnel(&self, to: &Origin) -> Result<Tunnel, Undelivered> {
        let Origin { tls, host, port } = &self.origin;
        let stream = self.dialer.open(host, *port, *tls).await;
        let stream = stream.map_err(|undelivered| undelivered.about("cannot reach the proxy"))?;
        let handshake = http1::Builder::new()
            .max_header_size(HEADER_BYTES_MAX)
            .handshake::<_, Empty<Bytes>>(TokioIo::new(stream))
            .await;
        let (mut sender, connection) = handshake.map_err(|error| self.failed(&error))?;
        // Ends when the tunnel is open or this call is dropped.
        let _driver = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
        let answer = sender.send_request(self.connect(to)?).await.map_err(|error| self.failed(&error))?;
        if !answer.status().is_success() {
            return Err(self.refused(answer.status(), to).into());
        }
        let tunnel = hyper::upgrade::on(answer).await.map_err(|error| self.failed(&error))?;
        Ok(TokioIo::new(tunnel))
    }

    fn connect(&self, to: &Origin) -> Result<http::Request<Empty<Bytes>>, Failure> {
        let unsendable = || Failure::permanent("the host cannot be sent to a proxy");
        let target = format!("{}:{}", to.host, to.port);
        let authority = Authority::try_from(target.as_str()).map_err(|_| unsendable())?;
        let mut request = http::Request::new(Empty::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = Uri::builder().authority(authority).build().map_err(|_| unsendable())?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::try_from(target).map_err(|_| unsendable())?);
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        if let Some(authorization) = &self.authorization {
            headers.insert(PROXY_AUTHORIZATION, authorization.clone());
        }
        Ok(request)
    }

    fn failed(&self, error: &hyper::Error) -> Failure {
        let failure = lost(error);
        Failure { error: format!("the proxy {self} opened no tunnel: {}", failure.error), ..failure }
    }

    /// An operator can mend it, there or here.
    fn refused(&self, status: StatusCode, to: &Origin) -> Failure {
        let hint = match (status, &self.authorization) {
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, None) => {
                "; it wants config.proxy.username and config.proxy.password"
            }
            (StatusCode::PROXY_AUTHENTICATION_REQUIRED, Some(_)) => {
                "; it does not accept config.proxy.username and config.proxy.password"
            }
            (_, None | Some(_)) => "",
        };
        let (host, port, status) = (&to.host, to.port, named(status));
        Failure::retryable(format!("the proxy {self} answered {status} to CONNECT {host}:{port}{hint}"))
    }
}

impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.origin.host, self.origin.port)
    }
}
