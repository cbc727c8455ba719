//! What a token allows its holder to do and to see. The same as the roles in PostgreSQL.

use std::collections::BTreeMap;
use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::Method;
use axum::http::request::Parts;
use postrider::store::{DeadLetter, Scope, Story};
use postrider::{Endpoint, EventType, Subscription};
use serde_json::Map;

use crate::view::{DeadLetterView, EndpointView, MessageView};

/// May a request with a token of this scope be served?
pub(super) fn may(scope: Scope, method: &Method, path: &str) -> bool {
    let looks = *method == Method::GET || *method == Method::HEAD;
    match scope {
        Scope::Admin => true,
        Scope::Monitor => looks && !path.starts_with("/v1/tokens"),
        Scope::Application => {
            let path: Vec<&str> = path.split('/').skip(1).collect();
            match path.as_slice() {
                ["v1", "endpoints", _, "messages"] | ["v1", "messages:batch"] => *method == Method::POST,
                ["v1", "events", _] | ["v1", "events:batch"] => *method == Method::POST,
                ["v1", "messages", _] => looks || *method == Method::DELETE,
                ["v1", "openapi.json"] => looks,
                _ => false,
            }
        }
    }
}

/// The scope of the token that a request came with. Without tokens every request is an admin's.
#[derive(Clone, Copy)]
pub(super) struct Viewer(pub(super) Scope);

impl<S: Sync> FromRequestParts<S> for Viewer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self(Scope::Admin)))
    }
}

impl Viewer {
    pub(super) fn endpoint(self, endpoint: &Endpoint) -> EndpointView {
        let view = EndpointView::of(endpoint);
        if self.sees_content() { view } else { view.without_config() }
    }

    pub(super) fn story(self, mut story: Story) -> MessageView {
        if !self.sees_content() {
            story.payload = None;
            story.headers = BTreeMap::new();
            story.options = Map::new();
            story.attempts.iter_mut().for_each(|attempt| attempt.response_body = None);
        }
        story.into()
    }

    pub(super) fn dead_letter(self, mut letter: DeadLetter) -> DeadLetterView {
        if !self.sees_content() {
            letter.payload = None;
            letter.headers = BTreeMap::new();
            letter.options = Map::new();
        }
        letter.into()
    }

    /// What a schema says of values is content, as in PostgreSQL.
    pub(super) fn event_type(self, mut event_type: EventType) -> EventType {
        if !self.sees_content() {
            event_type.schema = None;
        }
        event_type
    }

    /// A template is a payload with holes, and a filter a part of one.
    pub(super) fn subscription(self, mut subscription: Subscription) -> Subscription {
        if !self.sees_content() {
            (subscription.filter, subscription.template) = (None, None);
        }
        subscription
    }

    fn sees_content(self) -> bool {
        match self.0 {
            Scope::Admin | Scope::Application => true,
            Scope::Monitor => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_scope_may_do_its_work_and_no_more() {
        // Method, path, and whether application and monitor may.
        let table = [
            ("POST", "/v1/endpoints/shop/messages", true, false),
            ("POST", "/v1/messages:batch", true, false),
            ("POST", "/v1/events/order.paid", true, false),
            ("GET", "/v1/messages/7", true, true),
            ("DELETE", "/v1/messages/7", true, false),
            ("POST", "/v1/messages/7:erase", false, false),
            ("GET", "/v1/messages", false, true),
            ("GET", "/v1/endpoints", false, true),
            ("POST", "/v1/endpoints", false, false),
            ("PATCH", "/v1/endpoints/shop", false, false),
            ("DELETE", "/v1/endpoints/shop", false, false),
            ("POST", "/v1/endpoints/shop/test", false, false),
            ("POST", "/v1/endpoints/shop/pause", false, false),
            ("GET", "/v1/dlq", false, true),
            ("POST", "/v1/dlq/7:redrive", false, false),
            ("GET", "/v1/config", false, true),
            ("PUT", "/v1/config", false, false),
            ("GET", "/v1/tail", false, true),
            ("GET", "/v1/figures", false, true),
            ("GET", "/metrics", false, true),
            ("GET", "/v1/tokens", false, false),
            ("POST", "/v1/tokens", false, false),
            ("DELETE", "/v1/tokens/pr_x", false, false),
            ("GET", "/v1/openapi.json", true, true),
        ];
        for (method, path, application, monitor) in table {
            let method = method.parse().expect("a method");
            assert!(may(Scope::Admin, &method, path));
            assert_eq!(may(Scope::Application, &method, path), application, "application: {method} {path}");
            assert_eq!(may(Scope::Monitor, &method, path), monitor, "monitor: {method} {path}");
        }
    }
}
