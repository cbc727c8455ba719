//! Spans for attempts and settles. Made only if the node has a tracer.

use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::KeyValue;
use opentelemetry::global::BoxedSpan;
use opentelemetry::trace::{Span, SpanContext, SpanKind, Status};

use crate::endpoint::Endpoint;
use crate::message::{Claim, Message};
use crate::sink::Shortage;
use crate::store::Effect;
use crate::trace::{self, Tracer};
use crate::verdict::{Failure, Receipt};

/// One attempt, as part of the trace named in the message's headers.
pub(super) struct AttemptSpan {
    tracer: Tracer,
    span: BoxedSpan,
}

impl AttemptSpan {
    pub(super) fn begin(tracer: &Tracer, claim: &Claim, endpoint: &Endpoint) -> Self {
        let parent = trace::context_of(&claim.message.headers);
        let attributes = vec![
            KeyValue::new("postrider.endpoint", endpoint.name.to_string()),
            KeyValue::new("postrider.protocol", endpoint.protocol.as_str()),
            KeyValue::new("postrider.message", claim.message.id.0),
            KeyValue::new("postrider.attempt", i64::from(claim.attempt)),
        ];
        let span = tracer.begin("postrider.attempt", SpanKind::Client, parent.as_ref(), attributes);
        Self { tracer: tracer.clone(), span }
    }

    /// The message with this span in its headers, so that the receiver's spans become part of the attempt.
    pub(super) fn carried(&self, message: &Message) -> Arc<Message> {
        let mut carried = message.clone();
        trace::carry(self.span.span_context(), &mut carried.headers);
        Arc::new(carried)
    }

    pub(super) fn end(mut self, result: &Result<Receipt, Failure>) -> SettleSpan {
        let mut say = |name: &'static str, value: opentelemetry::Value| {
            self.span.set_attribute(KeyValue::new(name, value));
        };
        let status = match result {
            Ok(receipt) => {
                say("postrider.outcome", "delivered".into());
                receipt.status
            }
            Err(failure) => {
                say("postrider.outcome", "failed".into());
                say("postrider.class", failure.class.as_str().into());
                failure.status
            }
        };
        if let Some(status) = status {
            say("postrider.response_status", i64::from(status).into());
        }
        if let Err(failure) = result {
            self.span.set_status(Status::error(failure.error.clone()));
        }
        self.span.end();
        SettleSpan {
            attempt: self.span.span_context().clone(),
            tracer: self.tracer,
            began: SystemTime::now(),
        }
    }

    /// The attempt could not start; its claim is released.
    pub(super) fn end_prevented(mut self, shortage: &Shortage) {
        self.span.set_attribute(KeyValue::new("postrider.outcome", "prevented"));
        self.span.set_status(Status::error(shortage.to_string()));
        self.span.end();
    }
}

/// From the end of an attempt until it is settled.
pub(super) struct SettleSpan {
    tracer: Tracer,
    attempt: SpanContext,
    began: SystemTime,
}

impl SettleSpan {
    pub(super) fn end(self, effect: Effect) {
        let effect = match effect {
            Effect::Applied(state) => state.as_str(),
            Effect::Fenced => "fenced",
            Effect::Noted => "noted",
            Effect::Later => "later",
        };
        let attributes = vec![KeyValue::new("postrider.effect", effect)];
        let mut span = self.tracer.begin_at(
            "postrider.settle",
            SpanKind::Internal,
            Some(&self.attempt),
            attributes,
            self.began,
        );
        span.end();
    }
}
