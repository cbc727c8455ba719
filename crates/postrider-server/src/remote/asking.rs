//! One request to a node and its answer. What was asked for may have been done although no answer came: that is said,
//! and it is asked again only where that does no harm.

use std::borrow::Cow;
use std::fmt::Display;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use postrider::StoreError;
use postrider::store::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::form_urlencoded;
use utoipa::ToSchema;

use super::Remote;
use crate::api::PAGE_MAX;
use crate::view::Page;

/// How long a node may take to begin an answer, and to end it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The same where it has to look at everything there is.
const LONG_WORK_TIMEOUT: Duration = Duration::from_secs(600);
/// A line that is slower than this is taken for broken.
const BYTES_PER_SECOND_MIN: u64 = 256 * 1024;
/// The largest payload that there can be, in base64, with room around it.
const ANSWER_BYTES_MAX: usize = 160 << 20;
/// How often and after how long a send with an idempotency key is asked for again.
const TRIES_MAX: u32 = 3;
const AGAIN_AFTER: Duration = Duration::from_millis(500);

/// What is asked of a node.
pub(super) struct NodeRequest {
    method: Method,
    path: String,
    query: String,
    content_type: Cow<'static, str>,
    body: Bytes,
    timeout: Duration,
    /// Asking twice does what asking once does.
    repeatable: bool,
}

impl NodeRequest {
    pub(super) fn new(method: Method, path: impl Into<String>) -> Self {
        let (path, query, body) = (path.into(), String::new(), Bytes::new());
        let (content_type, timeout) = ("application/json".into(), ANSWER_TIMEOUT);
        Self { method, path, query, content_type, body, timeout, repeatable: false }
    }

    pub(super) fn get(path: impl Into<String>) -> Self {
        Self::new(Method::GET, path)
    }

    pub(super) fn post(path: impl Into<String>) -> Self {
        Self::new(Method::POST, path)
    }

    pub(super) fn delete(path: impl Into<String>) -> Self {
        Self::new(Method::DELETE, path)
    }

    pub(super) fn query(mut self, name: &str, value: Option<impl Display>) -> Self {
        if let Some(value) = value {
            let query = std::mem::take(&mut self.query);
            let mut pairs = form_urlencoded::Serializer::new(query);
            self.query = pairs.append_pair(name, &value.to_string()).finish();
        }
        self
    }

    pub(super) fn json(self, body: &impl Serialize) -> Self {
        let body = serde_json::to_vec(body).expect("what is asked for becomes JSON");
        self.body("application/json", body)
    }

    pub(super) fn body(self, content_type: impl Into<Cow<'static, str>>, body: impl Into<Bytes>) -> Self {
        Self { content_type: content_type.into(), body: body.into(), ..self }
    }

    /// It may take its time.
    pub(super) fn patiently(self) -> Self {
        Self { timeout: LONG_WORK_TIMEOUT, ..self }
    }

    pub(super) fn repeatable(self, repeatable: bool) -> Self {
        Self { repeatable, ..self }
    }

    pub(super) fn changes(&self) -> bool {
        self.method != Method::GET
    }

    /// What is sent, where something is too large.
    pub(super) fn bytes(&self) -> u64 {
        self.body.len() as u64
    }
}

/// A name as a part of a path; nothing can be named by nothing.
pub(super) fn segment(what: &'static str, name: &str) -> Result<String> {
    if name.is_empty() {
        return Err(StoreError::Unknown { what, name: String::new() });
    }
    Ok(form_urlencoded::byte_serialize(name.as_bytes()).collect::<String>().replace('+', "%20"))
}

/// Why there is no answer.
enum Lost {
    /// The request was not sent.
    Before(String),
    /// It was, or may have been.
    After(String),
}

impl Remote {
    /// What is asked for, as the node has it.
    pub(super) async fn answer<T: DeserializeOwned>(&self, asked: NodeRequest) -> Result<T> {
        Ok(self.answer_and_status(asked).await?.0)
    }

    pub(super) async fn answer_and_status<T: DeserializeOwned>(
        &self,
        asked: NodeRequest,
    ) -> Result<(T, StatusCode)> {
        let (status, body) = self.ask(asked).await?;
        let answer = serde_json::from_slice(&body).map_err(|_| self.foreign(status))?;
        Ok((answer, status))
    }

    /// Something is done, and there is nothing more to say.
    pub(super) async fn done(&self, asked: NodeRequest) -> Result<()> {
        match self.ask(asked).await? {
            (StatusCode::NO_CONTENT, _) => Ok(()),
            (status, _) => Err(self.foreign(status)),
        }
    }

    /// A list from a place on, as many pages as it takes.
    pub(super) async fn list<T: DeserializeOwned + ToSchema>(
        &self,
        ask: impl Fn() -> NodeRequest,
        from: Option<String>,
        limit: usize,
    ) -> Result<Vec<T>> {
        let (mut items, mut from) = (Vec::new(), from);
        loop {
            let asked = ask().query("limit", Some((limit - items.len()).clamp(1, PAGE_MAX)));
            let page: Page<T> = self.answer(asked.query("cursor", from)).await?;
            items.extend(page.items);
            from = page.next;
            if items.len() >= limit || from.is_none() {
                items.truncate(limit);
                return Ok(items);
            }
        }
    }

    /// A whole page that is not JSON, or is read elsewhere.
    pub(crate) async fn read(&self, path: &str) -> Result<Bytes> {
        Ok(self.ask(NodeRequest::get(path)).await?.1)
    }

    /// The body of a long answer, once the node has answered with success.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Incoming> {
        let with = |asked: NodeRequest, (name, value): &(&str, &str)| asked.query(name, Some(value));
        let asked = query.iter().fold(NodeRequest::get(path), with);
        let answer = self.begin(&asked).await.map_err(|lost| self.no_answer(&asked, lost))?;
        match answer.status().is_success() {
            true => Ok(answer.into_body()),
            false => {
                let status = answer.status();
                let body = whole(answer).await.map_err(|lost| self.no_answer(&asked, lost))?;
                Err(self.refusal(&asked, status, &body))
            }
        }
    }

    async fn ask(&self, asked: NodeRequest) -> Result<(StatusCode, Bytes)> {
        let (status, body) = self.exchange(&asked).await.map_err(|lost| self.no_answer(&asked, lost))?;
        match status.is_success() {
            true => Ok((status, body)),
            false => Err(self.refusal(&asked, status, &body)),
        }
    }

    async fn exchange(&self, asked: &NodeRequest) -> Result<(StatusCode, Bytes), Lost> {
        let (mut tries, mut perhaps_done) = (0, None);
        loop {
            tries += 1;
            match self.exchange_once(asked).await {
                Ok(answer) => return Ok(answer),
                Err(Lost::Before(why)) if perhaps_done.is_none() => return Err(Lost::Before(why)),
                Err(Lost::Before(_)) => {}
                Err(Lost::After(why)) => perhaps_done = Some(why),
            }
            if !asked.repeatable || tries == TRIES_MAX {
                return Err(Lost::After(perhaps_done.unwrap_or_default()));
            }
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }

    async fn exchange_once(&self, asked: &NodeRequest) -> Result<(StatusCode, Bytes), Lost> {
        let answer = self.begin(asked).await?;
        Ok((answer.status(), whole(answer).await?))
    }

    async fn begin(&self, asked: &NodeRequest) -> Result<Response<Incoming>, Lost> {
        let request = self.request(asked).map_err(|error| Lost::Before(error.to_string()))?;
        let for_body = Duration::from_secs(asked.body.len() as u64 / BYTES_PER_SECOND_MIN);
        match tokio::time::timeout(asked.timeout + for_body, self.client.request(request)).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) if error.is_connect() => Err(Lost::Before(innermost(&error))),
            Ok(Err(error)) => Err(Lost::After(innermost(&error))),
            Err(_) => Err(Lost::After("it does not answer".to_owned())),
        }
    }

    fn request(&self, asked: &NodeRequest) -> http::Result<Request<Full<Bytes>>> {
        let question = if asked.query.is_empty() { "" } else { "?" };
        // A proxy may have the API below another path.
        let uri = format!("{self}{}{question}{}", asked.path, asked.query);
        let mut request = Request::builder().method(&asked.method).uri(uri).header(ACCEPT, "*/*");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if !asked.body.is_empty() {
            request = request.header(CONTENT_TYPE, &*asked.content_type);
        }
        request.body(Full::new(asked.body.clone()))
    }

    fn no_answer(&self, asked: &NodeRequest, lost: Lost) -> StoreError {
        match lost {
            Lost::After(why) if asked.changes() => self.uncertain(&why),
            Lost::Before(why) | Lost::After(why) => self.unreachable(&why),
        }
    }
}

async fn whole(answer: Response<Incoming>) -> Result<Bytes, Lost> {
    let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect();
    match tokio::time::timeout(ANSWER_TIMEOUT, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) => Err(Lost::After(format!("its answer broke off: {error}"))),
        Err(_) => Err(Lost::After("its answer does not end".to_owned())),
    }
}

/// Clients wrap what happened; people want to know what did.
fn innermost(error: &hyper_util::client::legacy::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}
