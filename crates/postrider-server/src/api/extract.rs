//! What handlers take from a request: the store, a name or an id in the path, a small JSON body.

use std::convert::Infallible;
use std::ops::Deref;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Request};
use axum::http::Uri;
use axum::http::request::Parts;
use postrider::{Operate, StoreError};

use super::problem::Problem;
use super::{Api, body, unknown_route, wrong_method};
use crate::fields::BadDocument;

/// The store that requests are about.
pub(super) struct Operator(Arc<dyn Operate>);

impl FromRequestParts<Arc<Api>> for Operator {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, api: &Arc<Api>) -> Result<Self, Infallible> {
        Ok(Self(Arc::clone(&api.operate)))
    }
}

impl Deref for Operator {
    type Target = dyn Operate;

    fn deref(&self) -> &dyn Operate {
        &*self.0
    }
}

/// A name or an id in the path. A path that cannot be one names something that does not exist.
macro_rules! in_path {
    ($($name:ident($inner:ty) = $what:literal;)*) => {$(
        pub(super) struct $name(pub(super) $inner);

        impl $name {
            fn read(text: &str) -> Result<Self, Problem> {
                let unknown = |_| StoreError::Unknown { what: $what, name: text.to_owned() };
                Ok(Self(text.parse().map_err(unknown)?))
            }
        }

        impl<S: Send + Sync> FromRequestParts<S> for $name {
            type Rejection = Problem;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
                match Path::<String>::from_request_parts(parts, state).await {
                    Ok(Path(text)) => Self::read(&text),
                    Err(_) => Err(StoreError::Unknown { what: $what, name: "(not text)".to_owned() }.into()),
                }
            }
        }

        impl TryFrom<&Action> for $name {
            type Error = Problem;

            fn try_from(action: &Action) -> Result<Self, Problem> {
                Self::read(&action.id)
            }
        }
    )*};
}

in_path! {
    EndpointName(String) = "endpoint";
    EventTypeName(String) = "event type";
    SubscriptionNumber(i64) = "subscription";
    MessageNumber(i64) = "message";
    DeadLetterNumber(i64) = "dead letter";
    ReplayNumber(i64) = "replay";
    TokenPrefix(String) = "token";
}

/// `{id}:redrive`: the router knows whole segments only, and takes it for an id.
pub(super) struct Action {
    id: String,
    name: String,
    uri: Uri,
}

impl Action {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn unknown(self) -> Problem {
        unknown_route(self.uri).await
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Action {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        match text.ok().as_ref().and_then(|Path(text)| text.split_once(':')) {
            Some((id, name)) => Ok(Self { id: id.to_owned(), name: name.to_owned(), uri: parts.uri.clone() }),
            None => Err(wrong_method(parts.method.clone(), parts.uri.clone()).await),
        }
    }
}

/// A JSON document that is read field by field, so that the field that is wrong is named.
pub(super) trait FromBody: Sized {
    fn from_body(body: &[u8]) -> Result<Self, BadDocument>;
}

/// What a small JSON body asks for.
pub(super) struct JsonBody<T>(pub(super) T);

impl<T: FromBody, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request<Body>, _: &S) -> Result<Self, Problem> {
        let (parts, body) = request.into_parts();
        let body = body::read(&parts.headers, body, body::SMALL_MAX).await?;
        Ok(Self(T::from_body(&body)?))
    }
}
