//! Requests. All that does not change from message to message is made once, when the sink connects.

use std::fmt::Write as _;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Uri};
use jiff::Timestamp;

use super::auth::{Auth, basic};
use super::config::{self, HttpConfig, HttpOptions};
use super::encoding::{header_value, owned};
use super::origin::{Origin, RequestTarget};
use super::signature::{SigningKey, signatures};
use super::{Request, RequestBody};
use crate::endpoint::Endpoint;
use crate::message::{JSON, Message};
use crate::protocol::cloudevents::{CloudEvents, CloudEventsMode, ENVELOPE};
use crate::protocol::headers;
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Undelivered};
use crate::verdict::Failure;

pub(super) const AGENT: &str = concat!("postrider/", env!("CARGO_PKG_VERSION"));

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
const CREATED_AT: HeaderName = HeaderName::from_static("postrider-created-at");
const CORRELATION_ID: HeaderName = HeaderName::from_static("postrider-correlation-id");
const ORDERING_KEY: HeaderName = HeaderName::from_static("postrider-ordering-key");
const EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");

/// In the order of [`CloudEvents::attributes`].
const CE_NAMES: [HeaderName; 5] = [
    HeaderName::from_static("ce-specversion"),
    HeaderName::from_static("ce-id"),
    HeaderName::from_static("ce-source"),
    HeaderName::from_static("ce-type"),
    HeaderName::from_static("ce-time"),
];

pub(super) struct Template {
    method: Method,
    uri: Uri,
    target: RequestTarget,
    /// Host, agent, the endpoint's own headers and its credentials; what a message fills in is empty.
    headers: HeaderMap,
    /// Those that no message may replace.
    kept: Vec<HeaderName>,
    endpoint_sets_content_type: bool,
    signing_keys: Vec<SigningKey>,
    cloudevents: Option<CloudEvents>,
}

impl Template {
    pub(super) fn new(
        config: &HttpConfig,
        endpoint: &Endpoint,
        origin: &Origin,
        target: RequestTarget,
        secrets: &Secrets,
    ) -> Result<Self, Undelivered> {
        let mut headers = endpoint_headers(config, origin, secrets)?;
        let kept = headers.keys().filter(|name| endpoint.keeps_header(name.as_str())).cloned().collect();
        let endpoint_sets_content_type = headers.contains_key(CONTENT_TYPE);
        let signing_keys = signing_keys(config, secrets)?;
        // Room for what every message has, so that no copy of the map has to grow.
        for name in [CONTENT_TYPE, CONTENT_LENGTH, WEBHOOK_ID, WEBHOOK_TIMESTAMP, ATTEMPT, CREATED_AT] {
            headers.entry(name).or_insert(HeaderValue::from_static(""));
        }
        if !signing_keys.is_empty() {
            headers.insert(WEBHOOK_SIGNATURE, HeaderValue::from_static(""));
        }
        Ok(Self {
            method: config.method.clone(),
            uri: target.uri()?,
            target,
            endpoint_sets_content_type,
            headers,
            kept,
            signing_keys,
            cloudevents: CloudEvents::of(config.cloudevents, &config.cloudevents_type, &endpoint.name),
        })
    }

    /// The request that carries one attempt, in the form of HTTP/1: a path, and a `host` header.
    pub(super) fn fill(&self, delivery: &Delivery) -> Result<Request, Failure> {
        let message = &*delivery.message;
        let id = delivery.public_id();
        let mut headers = self.headers.clone();
        if !self.endpoint_sets_content_type {
            headers.insert(CONTENT_TYPE, content_type(message)?);
        }
        for (name, value) in &message.headers {
            let refused = |rule: String| Failure::permanent(format!("headers.{name}: {rule}"));
            let (name, value) = config::header(name, value).map_err(refused)?;
            if name == HOST {
                return Err(refused(headers::ENDPOINT_ONLY.to_owned()));
            }
            // The endpoint may have begun to set it after the message was sent.
            if !self.kept.contains(&name) {
                headers.insert(name, value);
            }
        }
        about(delivery, &mut headers);
        let body = match &self.cloudevents {
            None => message.payload.clone(),
            Some(event) => apply(event, delivery, &id, &mut headers),
        };
        let timestamp = delivery.now.as_second();
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp));
        if !self.signing_keys.is_empty() {
            let signature = signatures(&self.signing_keys, &id, timestamp, &body);
            headers.insert(WEBHOOK_SIGNATURE, owned(signature));
        }
        headers.insert(WEBHOOK_ID, sent_as_is(id)?);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));

        let mut request = Request::new(RequestBody::new(body));
        let options = HttpOptions::of(&message.options);
        *request.method_mut() = options.method.map_or_else(|| Ok(self.method.clone()), method)?;
        *request.uri_mut() = match options.url_suffix {
            Some(suffix) => self.target.with_suffix(suffix)?,
            None => self.uri.clone(),
        };
        *request.headers_mut() = headers;
        Ok(request)
    }
}

fn endpoint_headers(
    config: &HttpConfig,
    origin: &Origin,
    secrets: &Secrets,
) -> Result<HeaderMap, Undelivered> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, origin.authority()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    for (name, text) in &config.headers {
        let (name, value) = secrets.reveal_as(text, |text| config::header(name, text))?;
        headers.insert(name, value);
    }
    if let Some(authorization) = authorization(config.auth.as_ref(), secrets)? {
        headers.insert(AUTHORIZATION, authorization);
    }
    for (name, value) in &mut headers {
        value.set_sensitive(headers::is_secret(name.as_str()));
    }
    Ok(headers)
}

/// None where it is made for each request.
fn authorization(auth: Option<&Auth>, secrets: &Secrets) -> Result<Option<HeaderValue>, Undelivered> {
    match auth {
        Some(Auth::Basic { username, password }) => {
            Ok(Some(owned(format!("Basic {}", basic(username, &secrets.reveal(password)?)))))
        }
        Some(Auth::Bearer { token }) => {
            let value = secrets.reveal_as(token, |token| {
                HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| "cannot be sent in a header")
            });
            value.map(Some)
        }
        Some(Auth::OAuth2(_) | Auth::AwsSigv4(_)) | None => Ok(None),
    }
}

fn signing_keys(config: &HttpConfig, secrets: &Secrets) -> Result<Vec<SigningKey>, Undelivered> {
    config.signing_secrets.iter().map(|text| secrets.reveal_as(text, SigningKey::parse)).collect()
}

fn about(delivery: &Delivery, headers: &mut HeaderMap) {
    let message = &*delivery.message;
    headers.insert(ATTEMPT, HeaderValue::from(delivery.attempt));
    headers.insert(CREATED_AT, timestamp(message.created_at));
    if let Some(id) = message.correlation_id {
        headers.insert(CORRELATION_ID, owned(id.to_string()));
    }
    if let Some(key) = &message.ordering_key {
        headers.insert(ORDERING_KEY, header_value(key));
    }
    if let Some(event_type) = &message.event_type {
        headers.insert(EVENT_TYPE, header_value(event_type));
    }
}

/// Adds what the mode needs to the headers and gives the body that is sent.
fn apply(event: &CloudEvents, delivery: &Delivery, id: &str, headers: &mut HeaderMap) -> Bytes {
    match event.mode {
        CloudEventsMode::Binary => {
            let values = event.attributes(delivery, id);
            headers.extend(
                CE_NAMES.into_iter().zip(values).map(|(name, (_, value))| (name, header_value(&value))),
            );
            delivery.message.payload.clone()
        }
        CloudEventsMode::Structured => {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(ENVELOPE));
            event.envelope(delivery, id)
        }
    }
}

fn timestamp(at: Timestamp) -> HeaderValue {
    // As long as the stores' microseconds make it.
    let mut text = String::with_capacity("2026-01-01T00:00:00.000000Z".len());
    write!(text, "{at}").expect("a string can always be written to");
    owned(text)
}

fn content_type(message: &Message) -> Result<HeaderValue, Failure> {
    match message.content_type.as_str() {
        JSON => Ok(HeaderValue::from_static(JSON)),
        other => match config::header(CONTENT_TYPE.as_str(), other) {
            Ok((_, value)) => Ok(value),
            Err(rule) => Err(Failure::permanent(format!("content_type: {rule}"))),
        },
    }
}

fn sent_as_is(id: String) -> Result<HeaderValue, Failure> {
    HeaderValue::from_maybe_shared(Bytes::from(id))
        .map_err(|_| Failure::permanent("the name of the store cannot be sent as a header"))
}

fn method(text: &str) -> Result<Method, Failure> {
    Method::from_bytes(text.as_bytes()).map_err(|_| Failure::permanent("method: is not a valid HTTP method"))
}
