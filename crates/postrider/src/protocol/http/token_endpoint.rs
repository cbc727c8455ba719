//! The server that gives access tokens: what it is asked, and what its answer means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, timeout_at};
use url::form_urlencoded;

use super::answer::{named, receiver, retry_after};
use super::auth::{ClientAuth, OAuth2Config, client_basic, form_encoded};
use super::config::HttpConfig;
use super::connector::Connector;
use super::encoding::owned;
use super::origin::{self, Origin};
use super::pool::ConnectionPool;
use super::request::AGENT;
use super::{Request, RequestBody};
use crate::message::JSON;
use crate::sink::secret::Secrets;
use crate::sink::secret_mask::SecretMask;
use crate::sink::{Environment, Kept, Undelivered};
use crate::verdict::{Class, Failure};

const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// The part of an attempt's time that a token may take, so that the attempt can still say what went wrong.
const TIME_SHARE: f64 = 0.75;
const TIME_MAX: Duration = Duration::from_secs(30);

/// Of a token that does not say how long it lives. One that ends earlier is refused by the receiver and then replaced.
const LIFETIME_DEFAULT: Duration = Duration::from_secs(300);
const LIFETIME_MAX: Duration = Duration::from_secs(86_400);
/// A token is replaced this long before it ends, because a request that carries it takes time; a short-lived one after nine
/// tenths of its life.
const RENEW_BEFORE: Duration = Duration::from_secs(30);

/// What an error says is shown, but an endless text is not.
const SAID_CHARACTERS_MAX: usize = 200;

pub(super) struct AccessToken {
    /// As it is sent.
    pub(super) header: HeaderValue,
    pub(super) text: String,
    pub(super) renew_at: Instant,
}

pub(super) struct TokenEndpoint {
    origin: Origin,
    request: Request,
    connector: Arc<Connector>,
    kept: Arc<Kept>,
    time_max: Duration,
    /// For what the token endpoint repeats.
    mask: SecretMask,
}

#[derive(Deserialize)]
struct TokenAnswer {
    access_token: String,
    token_type: Option<String>,
    expires_in: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenRefusal {
    error: Option<String>,
    error_description: Option<String>,
}

impl TokenEndpoint {
    pub(super) fn new(
        oauth2: &OAuth2Config,
        config: &HttpConfig,
        connector: Connector,
        environment: &Environment,
    ) -> Result<Self, Undelivered> {
        let secret = Secrets::new(environment).reveal(&oauth2.client_secret)?;
        let origin = Origin::of(&oauth2.token_url)
            .ok_or_else(|| Failure::permanent("config.auth.token_url: must be http or https"))?;
        if origin.tls {
            connector.prepare_tls()?;
        }
        Ok(Self {
            request: request(oauth2, &origin, &secret)?,
            origin,
            connector: Arc::new(connector),
            kept: Arc::clone(&environment.kept),
            time_max: config.timeout.mul_f64(TIME_SHARE).min(TIME_MAX),
            mask: SecretMask::new([client_basic(&oauth2.client_id, &secret), form_encoded(&secret), secret]),
        })
    }

    /// What the token endpoint refuses is worth another try: its operator or that of the node can mend it.
    pub(super) async fn fetch(&self) -> Result<AccessToken, Undelivered> {
        let until = Instant::now() + self.time_max;
        let token = timeout_at(until, self.ask(until)).await.unwrap_or_else(|_| {
            let (name, seconds) = (self.name(), self.time_max.as_secs_f64());
            Err(Failure::retryable(format!("{name} did not answer within {seconds} s")).into())
        });
        token.map_err(|undelivered| undelivered.about("cannot get an access token"))
    }

    async fn ask(&self, until: Instant) -> Result<AccessToken, Undelivered> {
        let asked = Instant::now();
        let pool = ConnectionPool::new(self.origin.clone(), Arc::clone(&self.connector), 0, &self.kept);
        let mut answer = pool.send(self.request.clone()).await?;
        let body = answer.whole_body(ANSWER_BYTES_MAX, until).await;
        let status = answer.response.status();
        if !status.is_success() {
            let body = body.unwrap_or_default();
            return Err(self.refusal(status, answer.response.headers(), &body).into());
        }
        let body =
            body.ok_or_else(|| self.failure(status, "with an answer that is too large or incomplete"))?;
        Ok(self.token(status, &body, asked)?)
    }

    fn token(&self, status: StatusCode, body: &[u8], asked: Instant) -> Result<AccessToken, Failure> {
        let Ok(answer) = serde_json::from_slice::<TokenAnswer>(body) else {
            return Err(self.failure(status, "without an access token"));
        };
        if let Some(other) = answer.token_type.filter(|kind| !kind.eq_ignore_ascii_case("bearer")) {
            let what = format!("with a token of type {}; only bearer tokens can be sent", self.shown(&other));
            return Err(self.failure(status, &what));
        }
        let is_token = !answer.access_token.is_empty()
            && answer.access_token.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_token {
            return Err(self.failure(status, "with an access token that cannot be sent in a header"));
        }
        let mut header = owned(format!("Bearer {}", answer.access_token));
        header.set_sensitive(true);
        let renew_at = asked + used_for(answer.expires_in.as_ref());
        Ok(AccessToken { header, text: answer.access_token, renew_at })
    }

    fn refusal(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Failure {
        let TokenRefusal { error, error_description } = serde_json::from_slice(body).unwrap_or_default();
        let said: Vec<String> =
            [error, error_description].iter().flatten().map(|text| self.shown(text)).collect();
        let colon = if said.is_empty() { "" } else { ": " };
        let error = format!("{} answered {}{colon}{}", self.name(), named(status), said.join(": "));
        Failure {
            receiver: receiver(status, Class::Retryable),
            retry_after: retry_after(status, headers, Timestamp::now()),
            ..Failure::retryable(error)
        }
    }

    fn failure(&self, status: StatusCode, what: &str) -> Failure {
        Failure::retryable(format!("{} answered {} {what}", self.name(), named(status)))
    }

    /// A text of the token endpoint, without secrets that it may repeat.
    fn shown(&self, text: &str) -> String {
        let masked = self.mask.apply_to_text(text);
        masked.chars().filter(|c| !c.is_control()).take(SAID_CHARACTERS_MAX).collect()
    }

    fn name(&self) -> String {
        format!("{}:{}", self.origin.host, self.origin.port)
    }
}

fn request(oauth2: &OAuth2Config, origin: &Origin, secret: &str) -> Result<Request, Failure> {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("grant_type", "client_credentials");
    for (name, text) in [("scope", &oauth2.scope), ("audience", &oauth2.audience)] {
        if let Some(text) = text {
            form.append_pair(name, text);
        }
    }
    if oauth2.client_auth == ClientAuth::Body {
        form.append_pair("client_id", &oauth2.client_id).append_pair("client_secret", secret);
    }
    let body = Bytes::from(form.finish());
    let mut headers = HeaderMap::new();
    headers.insert(HOST, origin.authority()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.insert(ACCEPT, HeaderValue::from_static(JSON));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    if oauth2.client_auth == ClientAuth::Basic {
        let mut credentials = owned(format!("Basic {}", client_basic(&oauth2.client_id, secret)));
        credentials.set_sensitive(true);
        headers.insert(AUTHORIZATION, credentials);
    }
    let mut request = Request::new(RequestBody::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = origin::uri(origin::target_of(&oauth2.token_url))?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// How long a token is used. Some servers write the seconds as a text.
fn used_for(expires_in: Option<&Value>) -> Duration {
    let seconds = expires_in.and_then(|value| match value {
        Value::String(text) => text.parse::<f64>().ok(),
        value => value.as_f64(),
    });
    let lifetime = match seconds {
        Some(seconds) if seconds >= LIFETIME_MAX.as_secs_f64() => LIFETIME_MAX,
        Some(seconds) => Duration::try_from_secs_f64(seconds).unwrap_or_default(),
        None => LIFETIME_DEFAULT,
    };
    lifetime - RENEW_BEFORE.min(lifetime / 10)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_token_is_replaced_shortly_before_it_ends() {
        let cases = [
            (Some(json!(3600)), 3570.0),
            (Some(json!("3600")), 3570.0),
            (Some(json!(60)), 54.0),
            (Some(json!(1.5)), 1.35),
            (Some(json!(1e300)), 86_370.0),
            (Some(json!(0)), 0.0),
            (Some(json!(-5)), 0.0),
            (Some(json!("soon")), 270.0),
            (Some(json!(null)), 270.0),
            (None, 270.0),
        ];
        for (expires_in, seconds) in cases {
            assert_eq!(used_for(expires_in.as_ref()).as_secs_f64(), seconds, "{expires_in:?}");
        }
    }
}
