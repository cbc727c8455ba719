//! Requests. All that does not change from message to message is made once, when the sink connects.

use std::fmt::Write as _;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Uri};
use jiff::Timestamp;
use serde_json::Value;

use super::cloudevents::CloudEvents;
use super::encoding::{header_value, owned};
use super::origin::{Origin, Target};
use super::{Body, Request};
use crate::endpoint::Endpoint;
use crate::message::{JSON, Message};
use crate::protocol::headers;
use crate::protocol::signature::{SigningKey, signatures};
use crate::sink::secret::Secrets;
use crate::sink::{Delivery, Undelivered};
use crate::verdict::Failure;

const AGENT: &str = concat!("postrider/", env!("CARGO_PKG_VERSION"));

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const ATTEMPT: HeaderName = HeaderName::from_static("postrider-attempt");
const CREATED_AT: HeaderName = HeaderName::from_static("postrider-created-at");
const CORRELATION_ID: HeaderName = HeaderName::from_static("postrider-correlation-id");
const ORDERING_KEY: HeaderName = HeaderName::from_static("postrider-ordering-key");
const EVENT_TYPE: HeaderName = HeaderName::from_static("postrider-event-type");

pub(super) struct Template {
    method: Method,
    uri: Uri,
    target: Target,
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
        endpoint: &Endpoint,
        origin: &Origin,
        target: Target,
        secrets: &Secrets,
    ) -> Result<Self, Undelivered> {
        let mut headers = endpoint_headers(endpoint, origin, secrets)?;
        let kept = headers.keys().filter(|name| endpoint.keeps_header(name.as_str())).cloned().collect();
        let endpoint_sets_content_type = headers.contains_key(CONTENT_TYPE);
        let signing_keys = signing_keys(endpoint, secrets)?;
        // Room for what every message has, so that no copy of the map has to grow.
        for name in [CONTENT_TYPE, CONTENT_LENGTH, WEBHOOK_ID, WEBHOOK_TIMESTAMP, ATTEMPT, CREATED_AT] {
            headers.entry(name).or_insert(HeaderValue::from_static(""));
        }
        if !signing_keys.is_empty() {
            headers.insert(WEBHOOK_SIGNATURE, HeaderValue::from_static(""));
        }
        let text = |key: &str| endpoint.config.get(key).and_then(Value::as_str);
        Ok(Self {
            method: text("method").map_or(Ok(Method::POST), method)?,
            uri: target.uri()?,
            target,
            endpoint_sets_content_type,
            headers,
            kept,
            signing_keys,
            cloudevents: CloudEvents::of(endpoint),
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
            let refused = |rule| Failure::permanent(format!("headers.{name}: {rule}"));
            let name = headers::name_of_message(name).map_err(refused)?;
            let value = headers::value(&name, value).map_err(refused)?;
            // The endpoint may have begun to set it after the message was sent.
            if !self.kept.contains(&name) {
                headers.insert(name, value);
            }
        }
        about(delivery, &mut headers);
        let body = match &self.cloudevents {
            None => message.payload.clone(),
            Some(cloudevents) => cloudevents.apply(delivery, &id, &mut headers),
        };
        let timestamp = delivery.now.as_second();
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(timestamp));
        if !self.signing_keys.is_empty() {
            let signature = signatures(&self.signing_keys, &id, timestamp, &body);
            headers.insert(WEBHOOK_SIGNATURE, owned(signature));
        }
        headers.insert(WEBHOOK_ID, sent_as_is(id)?);
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));

        let mut request = Request::new(Body::new(body));
        *request.method_mut() = self.method_of(message)?;
        *request.uri_mut() = self.uri_of(message)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    fn method_of(&self, message: &Message) -> Result<Method, Failure> {
        match message.options.get("method").and_then(Value::as_str) {
            Some(text) => method(text),
            None => Ok(self.method.clone()),
        }
    }

    fn uri_of(&self, message: &Message) -> Result<Uri, Failure> {
        match message.options.get("url_suffix").and_then(Value::as_str) {
            Some(suffix) => self.target.with_suffix(suffix),
            None => Ok(self.uri.clone()),
        }
    }
}

fn endpoint_headers(
    endpoint: &Endpoint,
    origin: &Origin,
    secrets: &Secrets,
) -> Result<HeaderMap, Undelivered> {
    let mut headers = HeaderMap::new();
    headers.insert(HOST, origin.authority()?);
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    let own = endpoint.config.get("headers").and_then(Value::as_object);
    for (name, text) in own.into_iter().flatten() {
        let name = headers::name(name).map_err(Failure::permanent)?;
        let value =
            secrets.reveal_as(text.as_str().unwrap_or_default(), |text| headers::value(&name, text))?;
        headers.insert(name, value);
    }
    if let Some(auth) = endpoint.config.get("auth") {
        headers.insert(AUTHORIZATION, authorization(auth, secrets)?);
    }
    for (name, value) in &mut headers {
        value.set_sensitive(headers::is_secret(name.as_str()));
    }
    Ok(headers)
}

fn authorization(auth: &Value, secrets: &Secrets) -> Result<HeaderValue, Undelivered> {
    let text = |key: &str| auth.get(key).and_then(Value::as_str).unwrap_or_default();
    match text("type") {
        "basic" => {
            let pair = format!("{}:{}", text("username"), secrets.reveal(text("password"))?);
            Ok(owned(format!("Basic {}", BASE64_STANDARD.encode(pair))))
        }
        "bearer" => secrets.reveal_as(text("token"), |token| {
            HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| "cannot be sent in a header")
        }),
        other => Err(Failure::permanent(format!("config.auth.type: {other:?} is not known")).into()),
    }
}

fn signing_keys(endpoint: &Endpoint, secrets: &Secrets) -> Result<Vec<SigningKey>, Undelivered> {
    let listed = endpoint.config.get("signing_secrets").and_then(Value::as_array);
    let texts = listed.into_iter().flatten().map(|secret| secret.as_str().unwrap_or_default());
    texts.map(|text| secrets.reveal_as(text, SigningKey::parse)).collect()
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

fn timestamp(at: Timestamp) -> HeaderValue {
    // As long as the stores' microseconds make it.
    let mut text = String::with_capacity("2026-01-01T00:00:00.000000Z".len());
    write!(text, "{at}").expect("a string can always be written to");
    owned(text)
}

fn content_type(message: &Message) -> Result<HeaderValue, Failure> {
    match message.content_type.as_str() {
        JSON => Ok(HeaderValue::from_static(JSON)),
        other => headers::value(&CONTENT_TYPE, other)
            .map_err(|rule| Failure::permanent(format!("content_type: {rule}"))),
    }
}

fn sent_as_is(id: String) -> Result<HeaderValue, Failure> {
    HeaderValue::from_maybe_shared(bytes::Bytes::from(id))
        .map_err(|_| Failure::permanent("the name of the store cannot be sent as a header"))
}

fn method(text: &str) -> Result<Method, Failure> {
    Method::from_bytes(text.as_bytes()).map_err(|_| Failure::permanent("method: is not a valid HTTP method"))
}
