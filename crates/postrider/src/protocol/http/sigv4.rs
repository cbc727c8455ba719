//! AWS Signature Version 4: a signature over method, path, query, headers and body. Receivers check it with the same
//! secret, which is never sent.

use hmac::{Hmac, KeyInit as _, Mac as _};
use http::HeaderValue;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderName, USER_AGENT};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::Request;
use super::auth::SigV4Config;
use super::encoding::{owned, percent_decoded};
use crate::protocol::headers::percent_encoded;
use crate::sink::Undelivered;
use crate::sink::secret::Secrets;

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const CONTENT_SHA256: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const SECURITY_TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");

/// What a proxy or load balancer may change on the way must not be signed. The length is signed with the body.
const UNSIGNED: [HeaderName; 6] = [
    AUTHORIZATION,
    CONTENT_LENGTH,
    USER_AGENT,
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
    HeaderName::from_static("x-amzn-trace-id"),
];

pub(super) struct SigV4 {
    access_key_id: String,
    secret_access_key: String,
    region: String,
    service: String,
    session_token: Option<HeaderValue>,
}

impl SigV4 {
    pub(super) fn new(config: &SigV4Config, secrets: &Secrets) -> Result<Self, Undelivered> {
        let session_token = config.session_token.as_deref().map(|token| {
            secrets.reveal_as(token, |token| {
                let mut value = HeaderValue::from_str(token).map_err(|_| "cannot be sent in a header")?;
                value.set_sensitive(true);
                Ok::<_, &str>(value)
            })
        });
        Ok(Self {
            access_key_id: config.access_key_id.clone(),
            secret_access_key: secrets.reveal(&config.secret_access_key)?,
            region: config.region.clone(),
            service: config.service.clone(),
            session_token: session_token.transpose()?,
        })
    }

    /// Signs the request as it is; nothing of it may change afterwards. Gives the signature.
    pub(super) fn sign(&self, request: &mut Request, at: Timestamp) -> String {
        let body = request.body().clone().into_inner().unwrap_or_default();
        let body_hash = hex(&Sha256::digest(&body));
        let headers = request.headers_mut();
        headers.insert(DATE, owned(time(at)));
        headers.insert(CONTENT_SHA256, owned(body_hash.clone()));
        if let Some(token) = &self.session_token {
            headers.insert(SECURITY_TOKEN, token.clone());
        }
        let names = signed_names(headers);
        let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
        let target = (request.method().as_str(), path, query);
        let canonical = self.canonical(target, request.headers(), &names, &body_hash);
        let signature = self.signature(&canonical, at);
        let mut authorization = owned(format!(
            "{ALGORITHM} Credential={}/{}, SignedHeaders={}, Signature={signature}",
            self.access_key_id,
            self.scope(at),
            list(&names)
        ));
        authorization.set_sensitive(true);
        request.headers_mut().insert(AUTHORIZATION, authorization);
        signature
    }

    fn canonical(
        &self,
        (method, path, query): (&str, &str, &str),
        headers: &HeaderMap,
        names: &[HeaderName],
        body_hash: &str,
    ) -> String {
        let (path, query) = (self.canonical_path(path), canonical_query(query));
        let values = names.iter().map(|name| format!("{name}:{}\n", canonical_value(headers, name)));
        let headers: String = values.collect();
        format!("{method}\n{path}\n{query}\n{headers}\n{}\n{body_hash}", list(names))
    }

    /// S3 takes the path as it is sent. The others take it without detours, and encode it once more.
    fn canonical_path(&self, path: &str) -> String {
        match self.service.starts_with("s3") {
            true => percent_encoded(path.as_bytes(), |byte| is_unreserved(byte) || b"/%".contains(&byte)),
            false => {
                percent_encoded(straightened(path).as_bytes(), |byte| is_unreserved(byte) || byte == b'/')
            }
        }
    }

    fn signature(&self, canonical: &str, at: Timestamp) -> String {
        let hash = hex(&Sha256::digest(canonical));
        let text = format!("{ALGORITHM}\n{}\n{}\n{hash}", time(at), self.scope(at));
        hex(&mac(&self.signing_key(at), &text))
    }

    fn signing_key(&self, at: Timestamp) -> [u8; 32] {
        let secret = format!("AWS4{}", self.secret_access_key);
        let of_day = mac(secret.as_bytes(), &day(at));
        let of_region = mac(&of_day, &self.region);
        mac(&mac(&of_region, &self.service), "aws4_request")
    }

    fn scope(&self, at: Timestamp) -> String {
        format!("{}/{}/{}/aws4_request", day(at), self.region, self.service)
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y%m%dT%H%M%SZ").to_string()
}

fn day(at: Timestamp) -> String {
    at.strftime("%Y%m%d").to_string()
}

/// In the order in which they are signed.
fn signed_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names: Vec<HeaderName> =
        headers.keys().filter(|name| !UNSIGNED.contains(name)).cloned().collect();
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names
}

fn list(names: &[HeaderName]) -> String {
    names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(";")
}

/// One blank for many; several headers of a name count as one with a list.
fn canonical_value(headers: &HeaderMap, name: &HeaderName) -> String {
    let values = headers.get_all(name).iter().map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes());
        text.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    });
    values.collect::<Vec<_>>().join(",")
}

/// Sorted by name and then by value, both as they are after encoding.
fn canonical_query(query: &str) -> String {
    let encoded = |text: &str| percent_encoded(&percent_decoded(&text.replace('+', "%20")), is_unreserved);
    let parameters = query.split('&').filter(|parameter| !parameter.is_empty());
    let mut pairs: Vec<(String, String)> = parameters
        .map(|parameter| parameter.split_once('=').unwrap_or((parameter, "")))
        .map(|(name, value)| (encoded(name), encoded(value)))
        .collect();
    pairs.sort();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&")
}

/// Without empty parts, `.` and `..`.
fn straightened(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    match (parts.is_empty(), path.ends_with('/')) {
        (true, _) => "/".to_owned(),
        (false, true) => format!("/{}/", parts.join("/")),
        (false, false) => format!("/{}", parts.join("/")),
    }
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn mac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
