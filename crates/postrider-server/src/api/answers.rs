//! The refusals that routes share, for the API's description.

use std::collections::BTreeMap;

use utoipa::IntoResponses;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use super::problem::MEDIA_TYPE;

type RefusalsByStatus = BTreeMap<String, RefOr<Response>>;

/// Of every route.
pub(super) struct Common;

/// Where something is named: in the path, or in the query.
pub(super) struct Named;

/// Where a body is read.
pub(super) struct WithBody;

/// Where the present state may forbid it.
pub(super) struct Clash;

/// Where messages enter the queue.
pub(super) struct Full;

/// Where the number of answers at a time is limited.
pub(super) struct Crowded;

impl IntoResponses for Common {
    fn responses() -> RefusalsByStatus {
        refusals(&[
            (401, "The store has tokens, and none that it knows was given"),
            (
                403,
                "The token is not for this, or without tokens: `Host` or `Origin` is not loopback, or a proxy sent it",
            ),
            (
                503,
                "The store is not available, the node is stopping, too many requests are under way, or too many large bodies are on their way; `Retry-After` says when to try again",
            ),
        ])
    }
}

impl IntoResponses for Named {
    fn responses() -> RefusalsByStatus {
        refusals(&[(404, "What is named does not exist"), (422, "A value breaks a rule; `field` says which")])
    }
}

impl IntoResponses for WithBody {
    fn responses() -> RefusalsByStatus {
        refusals(&[
            (400, "The body did not arrive whole"),
            (408, "The body did not arrive in time"),
            (413, "The body, or a part of it, is larger than a limit allows"),
            (415, "The body has a `Content-Encoding` other than `identity`"),
            (422, "A value breaks a rule; `field` says which"),
        ])
    }
}

impl IntoResponses for Clash {
    fn responses() -> RefusalsByStatus {
        refusals(&[(409, "That cannot be done in its present state, or the name or key is taken")])
    }
}

impl IntoResponses for Full {
    fn responses() -> RefusalsByStatus {
        refusals(&[(429, "The queue is full; `Retry-After` says when to try again")])
    }
}

impl IntoResponses for Crowded {
    fn responses() -> RefusalsByStatus {
        refusals(&[(429, "All places are taken; `Retry-After` says when to try again")])
    }
}

fn refusals(refusals: &[(u16, &str)]) -> RefusalsByStatus {
    let refusal = |(status, description): &(u16, &str)| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        let response = ResponseBuilder::new().description(*description).content(MEDIA_TYPE, content);
        (status.to_string(), RefOr::T(response.build()))
    };
    refusals.iter().map(refusal).collect()
}
