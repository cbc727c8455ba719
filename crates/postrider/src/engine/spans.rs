//! The spans of a message's way through a node. None is made unless the node was given a tracer.

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

/// One attempt, as a part of the trace that its message names.
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

    /// The message as its receiver gets it: whatever it does is a part of this attempt.
    pub(super) fn carried(&self, message: &Message) -> Arc<Message> {
        let mut carried = message.clone();
        trace::carry(self.span.span_context(), &mut carried.headers);
        Arc::new(carried)
    }

    pub(super) fn end(mut self, result: &Result<Receipt, Failure>) -> Settling {
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
            say("postrider.status", i64::from(status).into());
        }
        if let Err(failure) = result {
            self.span.set_status(Status::error(failure.error.clone()));
        }
        self.span.end();
        Settling { attempt: self.span.span_context().clone(), tracer: self.tracer, began: SystemTime::now() }
    }

    /// It was not made, and its claim goes back.
    pub(super) fn end_prevented(mut self, shortage: &Shortage) {
        self.span.set_attribute(KeyValue::new("postrider.outcome", "prevented"));
        self.span.set_status(Status::error(shortage.to_string()));
        self.span.end();
    }
}

/// From the end of an attempt until the store has it.
pub(super) struct Settling {
    tracer: Tracer,
    attempt: SpanContext,
    began: SystemTime,
}

impl Settling {
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
