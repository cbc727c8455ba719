//! Redirects, where an endpoint asks for them.
//!
//! 307 and 308 keep method and body and are followed. 301, 302 and 303 turn a POST into a GET without
//! its body, which would deliver nothing, so they are followed only when the request is a GET or HEAD.

use std::sync::Arc;

use http::header::{HOST, LOCATION};
use http::{Method, StatusCode};
use url::Url;

use super::Request;
use super::answer::{HttpAnswer, named};
use super::connector::Connector;
use super::origin::{self, Origin};
use super::pool::ConnectionPool;
use super::signer::AttemptCredentials;
use crate::protocol::headers::is_secret;
use crate::sink::{Kept, Undelivered};
use crate::verdict::Failure;

pub(super) struct Redirects {
    max: u64,
    connector: Arc<Connector>,
    /// For other origins, which do not get the certificate of the endpoint.
    elsewhere: Arc<Connector>,
    kept: Arc<Kept>,
}

impl Redirects {
    pub(super) fn new(
        max: u64,
        connector: &Arc<Connector>,
        elsewhere: Arc<Connector>,
        kept: &Arc<Kept>,
    ) -> Self {
        Self { max, connector: Arc::clone(connector), elsewhere, kept: Arc::clone(kept) }
    }

    pub(super) fn are_followed(&self) -> bool {
        self.max > 0
    }

    /// The answer at the end of the way. Every hop passes the gate, for it opens its own connection.
    pub(super) async fn send(
        &self,
        pool: &ConnectionPool,
        mut request: Request,
        mut credentials: Option<&mut AttemptCredentials<'_>>,
    ) -> Result<LastAnswer, Undelivered> {
        let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
        let mut here =
            pool.origin().url(target).ok_or_else(|| Failure::permanent("the URL cannot be sent"))?;
        let mut last = LastAnswer { answer: pool.send(request.clone()).await?, at_home: true };
        for _ in 0..self.max {
            let Some(next) = next_hop(&here, request.method(), &last.answer)? else {
                return Ok(last);
            };
            let from = Origin::of(&here);
            let to = checked(from.as_ref(), &next, &last.answer)?;
            let same_origin = from.as_ref() == Some(&to);
            readdress(&mut request, same_origin, &to, &next)?;
            last.at_home &= same_origin;
            if let Some(credentials) = credentials.as_mut().filter(|_| last.at_home) {
                credentials.sign_again(&mut request);
            }
            let connector = if to == *pool.origin() { &self.connector } else { &self.elsewhere };
            let hop = ConnectionPool::new(to, Arc::clone(connector), 0, &self.kept);
            last.answer = hop.send(request.clone()).await.map_err(Undelivered::after_a_beginning)?;
            here = next;
        }
        match next_hop(&here, request.method(), &last.answer)? {
            Some(_) => {
                let why = format!("after {} redirects, which is max_redirects", self.max);
                Err(stopped(&last.answer, &why).into())
            }
            None => Ok(last),
        }
    }
}

pub(super) struct LastAnswer {
    pub(super) answer: HttpAnswer,
    /// False once a redirect has left the endpoint's origin: from there on, no credentials are sent.
    pub(super) at_home: bool,
}

/// None when the answer is not a redirect.
fn next_hop(here: &Url, method: &Method, answer: &HttpAnswer) -> Result<Option<Url>, Failure> {
    let status = answer.response.status();
    match status {
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {}
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND | StatusCode::SEE_OTHER => {
            if !matches!(*method, Method::GET | Method::HEAD) {
                return Err(stopped(answer, "which would drop the payload; only 307 and 308 are followed"));
            }
        }
        _ => return Ok(None),
    }
    let location = answer.response.headers().get(LOCATION).and_then(|location| location.to_str().ok());
    let next = location.and_then(|location| here.join(location).ok());
    next.map(Some).ok_or_else(|| stopped(answer, "without a valid location"))
}

/// What the endpoint's own URL may not be, a redirect may not be either.
fn checked(from: Option<&Origin>, next: &Url, answer: &HttpAnswer) -> Result<Origin, Failure> {
    let status = named(answer.response.status());
    let refused = |why: &str| Failure::permanent(format!("answered {status} to {why}, which is refused"));
    let to = Origin::of(next).ok_or_else(|| refused("a URL that is not http or https"))?;
    if !next.username().is_empty() || next.password().is_some() {
        return Err(refused("a URL with a user name or password"));
    }
    if from.is_some_and(|from| from.tls) && !to.tls {
        return Err(refused("an unencrypted URL"));
    }
    Ok(to)
}

/// Credentials stay with the origin they were given for.
fn readdress(request: &mut Request, same_origin: bool, to: &Origin, next: &Url) -> Result<(), Failure> {
    *request.uri_mut() = origin::uri(origin::target_of(next))?;
    if same_origin {
        return Ok(());
    }
    let headers = request.headers_mut();
    let secrets: Vec<_> = headers.keys().filter(|name| is_secret(name.as_str())).cloned().collect();
    for name in secrets {
        headers.remove(name);
    }
    headers.insert(HOST, to.authority()?);
    Ok(())
}

fn stopped(answer: &HttpAnswer, why: &str) -> Failure {
    let status = answer.response.status();
    let mut failure = Failure::retryable(format!("answered {} {why}", named(status)));
    failure.status = Some(status.as_u16());
    failure
}
