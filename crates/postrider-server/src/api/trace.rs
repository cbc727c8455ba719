//! The trace that a request is a part of goes on with its message.

use http::header::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanKind, Status};
use postrider::trace::{self, TRACEPARENT, TRACESTATE, Tracer};
use postrider::{NewMessage, Sent, StoreError};

/// A send, seen as a span. Without a tracer there is none, and the message carries what the caller said.
pub(super) struct SendSpan(Option<BoxedSpan>);

impl SendSpan {
    /// What a message names itself goes before the request's own headers.
    pub(super) fn begin(tracer: Option<&Tracer>, headers: &HeaderMap, message: &mut NewMessage) -> Self {
        let parent = trace::context_of(&message.headers).or_else(|| {
            let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
            trace::parse(text(TRACEPARENT)?, text(TRACESTATE))
        });
        let Some(tracer) = tracer else {
            parent.inspect(|parent| trace::carry(parent, &mut message.headers));
            return Self(None);
        };
        let attributes = vec![KeyValue::new("postrider.endpoint", message.endpoint.clone())];
        let span = tracer.begin("postrider.send", SpanKind::Producer, parent.as_ref(), attributes);
        trace::carry(span.span_context(), &mut message.headers);
        Self(Some(span))
    }

    pub(super) fn end(self, sent: &Result<Sent, StoreError>) {
        let Some(mut span) = self.0 else { return };
        match sent {
            Ok(sent) => {
                span.set_attribute(KeyValue::new("postrider.message", sent.id.0));
                span.set_attribute(KeyValue::new("postrider.duplicate", sent.duplicate));
            }
            Err(error) => span.set_status(Status::error(error.to_string())),
        }
        span.end();
    }
}
