//! A running node, asked over its API: where it is, the token that opens it, and its refusals as the failures that a
//! command on the store itself would have.

use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use url::Url;

use crate::failure::{Exit, Failure};
use crate::https;

/// How long a node may take to begin an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The figures of thousands of endpoints are a few of these.
const ANSWER_BYTES_MAX: usize = 64 << 20;
/// A problem document says little; what is longer is none.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;

#[derive(clap::Args)]
pub(crate) struct RemoteArgs {
    /// Where the node answers
    #[arg(
        long,
        env = "POSTRIDER_URL",
        hide_env_values = true,
        value_name = "URL",
        default_value = "http://127.0.0.1:7171"
    )]
    url: String,

    /// Environment variable that holds the token
    #[arg(long, value_name = "NAME", default_value = "POSTRIDER_TOKEN")]
    token_env: String,
}

impl RemoteArgs {
    /// One on this machine that asks for no token.
    pub(crate) fn of_node(authority: &str) -> Self {
        Self { url: format!("http://{authority}"), token_env: String::new() }
    }
}

pub(crate) struct Remote {
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    url: Url,
    authorization: Option<HeaderValue>,
    token_env: String,
}

impl Remote {
    pub(crate) fn new(arguments: RemoteArgs) -> Result<Self, Failure> {
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(https::connector()?),
            url: address(&arguments.url)?,
            authorization: authorization(&arguments.token_env)?,
            token_env: arguments.token_env,
        })
    }

    /// The beginning of an answer, if it is one that says yes.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Incoming, Failure> {
        let request = self.request(path, query)?;
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, self.client.request(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Err(self.unreachable(&innermost(&error))),
            Err(_) => return Err(self.unreachable("it does not answer")),
        };
        let (parts, body) = answer.into_parts();
        if parts.status.is_success() {
            return Ok(body);
        }
        let body = Limited::new(body, PROBLEM_BYTES_MAX).collect();
        let body = tokio::time::timeout(ANSWER_TIMEOUT, body).await;
        let document = body.ok().and_then(Result::ok).map(|body| body.to_bytes()).unwrap_or_default();
        Err(self.refusal(parts.status, &document))
    }

    /// A whole answer.
    pub(crate) async fn read(&self, path: &str) -> Result<Bytes, Failure> {
        let body = Limited::new(self.get(path, &[]).await?, ANSWER_BYTES_MAX).collect();
        match tokio::time::timeout(ANSWER_TIMEOUT, body).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.unreachable(&error.to_string())),
            Err(_) => Err(self.unreachable("its answer does not end")),
        }
    }

    fn request(&self, path: &str, query: &[(&str, &str)]) -> Result<Request<Empty<Bytes>>, Failure> {
        let mut url = self.url.clone();
        // A proxy may have the API below a path of its own.
        url.set_path(&format!("{}{path}", self.url.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let mut request = Request::get(url.as_str());
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(Empty::new()).map_err(|error| Failure::usage(format!("url: {error}")))
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::store(format!("cannot reach a node at {self}: {why}"))
            .hint("`postrider serve` runs one; --url or POSTRIDER_URL says where it answers")
    }

    fn refusal(&self, status: StatusCode, document: &[u8]) -> Failure {
        let Ok(problem) = serde_json::from_slice::<Problem>(document) else {
            return Failure::failed(format!("{self} answered {status}, and not as a node does"))
                .hint("--url must be the address of a node");
        };
        let exit = match status {
            StatusCode::SERVICE_UNAVAILABLE => Exit::Store,
            status if status.is_client_error() => Exit::Refused,
            _ => Exit::Failed,
        };
        let hint = match status {
            StatusCode::UNAUTHORIZED => {
                Some(format!("put a token into {}; `postrider token create` makes one", self.token_env))
            }
            StatusCode::SERVICE_UNAVAILABLE => Some("nothing was changed; try again".to_owned()),
            _ => None,
        };
        let error = match (status, &self.authorization) {
            (StatusCode::UNAUTHORIZED, None) => format!("{self} asks for a token"),
            (StatusCode::UNAUTHORIZED, Some(_)) => {
                format!("{self} does not take the token in {}", self.token_env)
            }
            _ => problem.detail.unwrap_or(problem.title),
        };
        Failure { exit, error, field: problem.field, sqlstate: problem.sqlstate.map(Into::into), hint }
    }
}

impl std::fmt::Display for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

/// What a node says when it refuses (RFC 9457).
#[derive(Deserialize)]
struct Problem {
    title: String,
    detail: Option<String>,
    field: Option<String>,
    sqlstate: Option<String>,
}

/// What is refused is not repeated where a password may be in it.
fn address(text: &str) -> Result<Url, Failure> {
    let refused = |rule: &str| Failure::usage(format!("url: {rule}"));
    let url = Url::parse(text).map_err(|_| refused("must be written as http://HOST:PORT or https://HOST"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not have a name or password in it; a token goes into POSTRIDER_TOKEN"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must end before ? and #"));
    }
    Ok(url)
}

fn authorization(name: &str) -> Result<Option<HeaderValue>, Failure> {
    let Some(token) = std::env::var_os(name).filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    let refused =
        || Failure::usage(format!("the token in {name} is not one that `postrider token create` made"));
    let token = token.to_str().ok_or_else(refused)?.trim();
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| refused())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Clients wrap what happened; people want to know what did.
fn innermost(error: &hyper_util::client::legacy::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_refused_without_repeating_its_password() {
        for bad in ["", "127.0.0.1:7171", "ftp://a/", "http://me:hush@a/", "http://a/?x=hush", "hush@a"] {
            let failure = address(bad).expect_err(bad);
            assert_eq!(failure.exit, Exit::Usage, "{bad}");
            assert!(!failure.error.contains("hush"), "{}", failure.error);
        }
        assert!(address("https://example.org/postrider/").is_ok());
    }
}
