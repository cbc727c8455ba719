//! W3C Trace Context. A message carries the sender's `traceparent` and `tracestate` as headers; a node with a tracer
//! replaces them with those of its attempt's span.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::global::{BoxedSpan, BoxedTracer};
use opentelemetry::trace::{
    SpanBuilder, SpanContext, SpanId, SpanKind, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
};
use opentelemetry::{Context, KeyValue};

pub use opentelemetry;

pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

/// The standard requires passing on this much; a longer state is dropped.
const TRACESTATE_BYTES_MAX: usize = 512;

/// Makes a node's spans.
#[derive(Clone)]
pub struct Tracer(Arc<BoxedTracer>);

impl Tracer {
    pub fn new(tracer: BoxedTracer) -> Self {
        Self(Arc::new(tracer))
    }

    /// A span within `parent`. Without a parent it starts a new trace.
    pub fn begin(
        &self,
        name: &'static str,
        kind: SpanKind,
        parent: Option<&SpanContext>,
        attributes: Vec<KeyValue>,
    ) -> BoxedSpan {
        self.begin_at(name, kind, parent, attributes, SystemTime::now())
    }

    pub fn begin_at(
        &self,
        name: &'static str,
        kind: SpanKind,
        parent: Option<&SpanContext>,
        attributes: Vec<KeyValue>,
        began: SystemTime,
    ) -> BoxedSpan {
        let builder =
            SpanBuilder::from_name(name).with_kind(kind).with_attributes(attributes).with_start_time(began);
        let context = parent
            .map_or_else(Context::new, |parent| Context::new().with_remote_span_context(parent.clone()));
        self.0.build_with_context(builder, &context)
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tracer")
    }
}

/// The span named in a message's headers. The standard says to ignore what cannot be parsed.
pub fn context_of(headers: &BTreeMap<String, String>) -> Option<SpanContext> {
    if headers.is_empty() {
        return None;
    }
    let text = |wanted: &str| {
        headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, text)| text.as_str())
    };
    parse(text(TRACEPARENT)?, text(TRACESTATE))
}

/// `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`; later versions may append fields.
pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let parts: Vec<&str> = traceparent.trim().split('-').collect();
    let [version, trace, span, flags, ..] = parts[..] else { return None };
    let is_hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let is_known = is_hex(version, 2) && version != "ff" && (version != "00" || parts.len() == 4);
    if !is_known || !is_hex(trace, 32) || !is_hex(span, 16) || !is_hex(flags, 2) {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(flags, 16).ok()?) & TraceFlags::SAMPLED;
    let state = tracestate.filter(|text| text.len() <= TRACESTATE_BYTES_MAX);
    let state = state.and_then(|text| TraceState::from_str(text).ok()).unwrap_or_default();
    let (trace, span) = (TraceId::from_hex(trace).ok()?, SpanId::from_hex(span).ok()?);
    Some(SpanContext::new(trace, span, flags, true, state)).filter(SpanContext::is_valid)
}

/// Replaces the span in the headers by this one.
pub fn carry(context: &SpanContext, headers: &mut BTreeMap<String, String>) {
    headers
        .retain(|name, _| !name.eq_ignore_ascii_case(TRACEPARENT) && !name.eq_ignore_ascii_case(TRACESTATE));
    let traceparent = format!(
        "00-{}-{}-{:02x}",
        context.trace_id(),
        context.span_id(),
        context.trace_flags() & TraceFlags::SAMPLED
    );
    headers.insert(TRACEPARENT.to_owned(), traceparent);
    let state = context.trace_state().header();
    if !state.is_empty() {
        headers.insert(TRACESTATE.to_owned(), state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn what_is_carried_is_read_again() {
        let headers = BTreeMap::from([
            ("Traceparent".to_owned(), PARENT.to_owned()),
            ("tracestate".to_owned(), "vendor=a, other=b".to_owned()),
            ("x-shop".to_owned(), "1".to_owned()),
        ]);
        let context = context_of(&headers).expect("a context");
        assert!(context.is_sampled() && context.is_remote());
        let mut carried = headers;
        carry(&context, &mut carried);
        let expected = [("traceparent", PARENT), ("tracestate", "vendor=a,other=b"), ("x-shop", "1")];
        assert_eq!(carried, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn what_cannot_be_read_is_none() {
        let bad = [
            "",
            "00",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ];
        for text in bad {
            assert!(parse(text, None).is_none(), "{text}");
        }
        assert!(parse(&format!("01{}-more", &PARENT[2..]), None).is_some(), "a later version");
        let long = format!("a={}", "x".repeat(TRACESTATE_BYTES_MAX));
        assert_eq!(parse(PARENT, Some(&long)).expect("a context").trace_state().header(), "");
    }
}
