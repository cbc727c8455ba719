//! A running node in the place of its store: every operation is asked for over its API, and a refusal is the error that
//! the store itself would have given.

use std::fmt;

use http::HeaderValue;
use http_body_util::Full;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use url::Url;

use crate::cli::EVERYWHERE;
use crate::failure::CommandError;
use crate::https;

mod asking;
mod refusal;
mod operate;
mod sending;
mod listing;
mod pubsub;
mod replays;
mod sweeps;
mod tokens;
mod figures;

/// Where `postrider serve` answers unless it is told otherwise.
const URL_DEFAULT: &str = "http://127.0.0.1:7171";

#[derive(Clone, clap::Args)]
pub(crate) struct RemoteArgs {
    /// Work through the node that answers there, instead of on a store
    #[arg(id = "node_url", long = "url", env = "POSTRIDER_URL", hide_env_values = true, value_name = "URL", help_heading = EVERYWHERE)]
    pub(crate) url: Option<String>,

    /// Environment variable that holds the token for it
    #[arg(long, value_name = "NAME", default_value = "POSTRIDER_TOKEN", help_heading = EVERYWHERE)]
    pub(crate) token_env: String,
}

impl RemoteArgs {
    /// One on this machine that asks for no token.
    pub(crate) fn of_node(authority: &str) -> Self {
        Self { url: Some(format!("http://{authority}")), token_env: String::new() }
    }
}

pub(crate) struct Remote {
    client: Client<HttpsConnector<HttpConnector>, Full<bytes::Bytes>>,
    url: Url,
    authorization: Option<HeaderValue>,
    token_env: String,
}

impl Remote {
    /// Sends no request yet.
    pub(crate) fn new(arguments: RemoteArgs) -> Result<Self, CommandError> {
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(https::connector()?),
            url: address(arguments.url.as_deref().unwrap_or(URL_DEFAULT))?,
            authorization: authorization(&arguments.token_env)?,
            token_env: arguments.token_env,
        })
    }

    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

/// What is refused is not repeated where a password may be in it.
fn address(text: &str) -> Result<Url, CommandError> {
    let refused = |rule: &str| CommandError::usage(format!("url: {rule}"));
    let mut url =
        Url::parse(text).map_err(|_| refused("must be written as http://HOST:PORT or https://HOST"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(refused("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refused("must not have a name or password in it; a token goes into POSTRIDER_TOKEN"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused("must end before ? and #"));
    }
    // As `serve` prints it.
    if let Some(above) = url.path().trim_end_matches('/').strip_suffix("/v1").map(str::to_owned) {
        url.set_path(&above);
    }
    Ok(url)
}

fn authorization(name: &str) -> Result<Option<HeaderValue>, CommandError> {
    let Some(token) = std::env::var_os(name).filter(|token| !token.is_empty()) else {
        return Ok(None);
    };
    let refused =
        || CommandError::usage(format!("the token in {name} is not one that `postrider token create` made"));
    let token = token.to_str().ok_or_else(refused)?.trim();
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| refused())?;
    value.set_sensitive(true);
    Ok(Some(value))
}

#[cfg(test)]
mod tests;
