//! `GET /metrics`, for Prometheus and whatever reads its formats.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Response};
use axum::routing::get;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, VARY};

use super::answers::Common;
use crate::metrics::Metrics;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn with_metrics(router: Router, metrics: Metrics) -> Router {
    let own = Router::new().route("/metrics", get(show)).method_not_allowed_fallback(super::wrong_method);
    router.merge(own.with_state(Arc::new(metrics)))
}

/// Figures of the store and of this node, for Prometheus: plain text, or OpenMetrics where `Accept` names it.
#[utoipa::path(get, path = "/metrics", operation_id = "show_metrics", tag = "health",
    responses((status = 200, description = "The page", content((String = "text/plain"), (String = "application/openmetrics-text"))), Common))]
pub(super) async fn show(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> Response<Body> {
    let texts = metrics.texts().await;
    let (content_type, page) = match wants_openmetrics(&headers) {
        true => (OPENMETRICS, texts.openmetrics),
        false => (PLAIN, texts.plain),
    };
    let mut response = Response::new(Body::from(page));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept"));
    response
}

/// Only who names it, and likes plain text no better.
fn wants_openmetrics(headers: &HeaderMap) -> bool {
    let (mut openmetrics, mut plain) = (0.0, 0.0);
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    for range in accepted.flat_map(|value| value.split(',')) {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let weight = parts.find_map(|part| part.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
        if media.eq_ignore_ascii_case("application/openmetrics-text") {
            openmetrics = f32::max(openmetrics, weight);
        } else if media.eq_ignore_ascii_case("text/plain") {
            plain = f32::max(plain, weight);
        }
    }
    openmetrics > 0.0 && openmetrics >= plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openmetrics_is_for_those_who_ask_for_it() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        let cases = [
            (None, false),
            (Some("*/*"), false),
            (Some("text/html, text/plain"), false),
            (Some("application/openmetrics-text"), true),
            (Some("application/openmetrics-text;q=0, text/plain"), false),
            (Some("application/openmetrics-text;q=0.1, text/plain;q=0.9"), false),
            (Some(prometheus), true),
        ];
        for (accept, expected) in cases {
            let mut headers = HeaderMap::new();
            accept.map(|accept| headers.insert(ACCEPT, HeaderValue::from_static(accept)));
            assert_eq!(wants_openmetrics(&headers), expected, "{accept:?}");
        }
    }
}
