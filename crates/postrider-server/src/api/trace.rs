//! A message continues the trace of the request that sent it.

use http::header::HeaderMap;
use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanContext, SpanKind, Status};
use postrider::trace::{self, TRACEPARENT, TRACESTATE, Tracer};
use postrider::{NewMessage, Sent, StoreError};

/// A send, seen as a span. Without a tracer there is none, and the message carries what the caller said.
pub(super) struct SendSpan(Option<BoxedSpan>);

impl SendSpan {
    pub(super) fn begin(tracer: Option<&Tracer>, headers: &HeaderMap, message: &mut NewMessage) -> Self {
        let endpoint = message.endpoint.clone();
        Self::named(tracer, "postrider.send", ("postrider.endpoint", endpoint), headers, message)
    }

    pub(super) fn of_event(
        tracer: Option<&Tracer>,
        event_type: &str,
        headers: &HeaderMap,
        message: &mut NewMessage,
    ) -> Self {
        let event_type = ("postrider.event_type", event_type.to_owned());
        Self::named(tracer, "postrider.publish", event_type, headers, message)
    }

    /// What a message names itself goes before the request's own headers.
    fn named(
        tracer: Option<&Tracer>,
        name: &'static str,
        (attribute, value): (&'static str, String),
        headers: &HeaderMap,
        message: &mut NewMessage,
    ) -> Self {
        let parent = parent_of(headers, message);
        let Some(tracer) = tracer else {
            parent.inspect(|parent| trace::carry(parent, &mut message.headers));
            return Self(None);
        };
        let attributes = vec![KeyValue::new(attribute, value)];
        let span = tracer.begin(name, SpanKind::Producer, parent.as_ref(), attributes);
        trace::carry(span.span_context(), &mut message.headers);
        Self(Some(span))
    }

    pub(super) fn end(self, sent: &Result<Sent, StoreError>) {
        self.ended(sent, |sent| {
            vec![
                KeyValue::new("postrider.message", sent.id.0),
                KeyValue::new("postrider.duplicate", sent.duplicate),
            ]
        });
    }

    pub(super) fn end_event(self, published: &Result<u64, StoreError>) {
        self.ended(published, |messages| vec![KeyValue::new("postrider.messages", messages.cast_signed())]);
    }

    fn ended<T>(self, result: &Result<T, StoreError>, attributes: impl FnOnce(&T) -> Vec<KeyValue>) {
        let Some(mut span) = self.0 else { return };
        match result {
            Ok(done) => span.set_attributes(attributes(done)),
            Err(error) => span.set_status(Status::error(error.to_string())),
        }
        span.end();
    }
}

/// For the messages of a batch, which have no span of their own: their attempts belong to the caller's.
pub(super) fn carry_on(headers: &HeaderMap, message: &mut NewMessage) {
    if let Some(parent) = parent_of(headers, message) {
        trace::carry(&parent, &mut message.headers);
    }
}

fn parent_of(headers: &HeaderMap, message: &NewMessage) -> Option<SpanContext> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    trace::context_of(&message.headers).or_else(|| trace::parse(text(TRACEPARENT)?, text(TRACESTATE)))
}
