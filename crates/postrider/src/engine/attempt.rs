//! One attempt: connect if needed, deliver under one deadline, survive a panicking sink.

use std::cell::Cell;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::sync::{OnceCell, mpsc};
use tokio::time::Instant;

use super::concurrency::ReceiverLoad;
use super::spans::{AttemptSpan, SettleSpan};
use crate::breaker::Sign;
use crate::endpoint::Endpoint;
use crate::message::Claim;
use crate::net::{blocking, judge};
use crate::sink::secret_mask::SecretMask;
use crate::sink::{
    self, Capture, Delivery, Environment, HANDED_OVER, Shortage, Sink, SinkConnection, Undelivered,
};
use crate::trace::Tracer;
use crate::verdict::{Failure, Outcome, Receipt};

/// An endpoint's sink. The first attempt connects it; a change of the endpoint makes a new one.
pub(super) struct EndpointSink {
    pub(super) endpoint: Arc<Endpoint>,
    environment: Arc<Environment>,
    connected: OnceCell<ConnectedSink>,
}

struct ConnectedSink {
    sink: Arc<dyn Sink>,
    mask: SecretMask,
}

impl EndpointSink {
    pub(super) fn new(endpoint: Arc<Endpoint>, environment: Arc<Environment>) -> Self {
        Self { endpoint, environment, connected: OnceCell::new() }
    }

    /// None before the first attempt.
    pub(super) fn connection(&self) -> Option<SinkConnection> {
        let ConnectedSink { sink, mask } = self.connected.get()?;
        Some(match sink.connection() {
            SinkConnection::Down { error } => SinkConnection::Down { error: mask.apply_to_text(&error) },
            state @ (SinkConnection::NotKept
            | SinkConnection::Idle
            | SinkConnection::Connecting
            | SinkConnection::Up) => state,
        })
    }

    async fn connected(&self) -> Result<&ConnectedSink, Undelivered> {
        let connect = async || {
            let (endpoint, environment) = (self.endpoint.clone(), self.environment.clone());
            // Blocking: reads secrets and certificates from files.
            let connect = move || {
                let sink = sink::connect(&endpoint, &environment)?;
                Ok(ConnectedSink { sink, mask: SecretMask::of(&endpoint, &environment)? })
            };
            blocking(connect).await.unwrap_or_else(|error| {
                Err(judge(&error, Failure::retryable("connecting the sink panicked")))
            })
        };
        self.connected.get_or_try_init(connect).await
    }
}

pub(super) struct Attempt {
    pub(super) claim: Claim,
    pub(super) sink: Arc<EndpointSink>,
    pub(super) store: Arc<str>,
    pub(super) capture: Capture,
    pub(super) timeout: Duration,
    pub(super) started_at: Timestamp,
    pub(super) tracer: Option<Tracer>,
    /// The circuit's epoch when the attempt started.
    pub(super) epoch: i64,
    /// Gets the claim back when the attempt is aborted.
    pub(super) cut_off: mpsc::UnboundedSender<CutOffAttempt>,
}

/// An attempt that was aborted because the node stopped.
pub(super) struct CutOffAttempt {
    pub(super) claim: Claim,
    pub(super) started_at: Timestamp,
}

/// Keeps the claim while the attempt runs. Dropped with an aborted attempt, it sends the claim back.
struct ClaimGuard {
    claim: Option<CutOffAttempt>,
    cut_off: mpsc::UnboundedSender<CutOffAttempt>,
}

impl ClaimGuard {
    fn claim(&self) -> &Claim {
        &self.claim.as_ref().expect("kept until it is taken").claim
    }

    fn take(mut self) -> Claim {
        self.claim.take().expect("taken once").claim
    }
}

impl Drop for ClaimGuard {
    fn drop(&mut self) {
        if let Some(cut) = self.claim.take() {
            // It fails when the dispatcher is gone, too: the process ends.
            let _ = self.cut_off.send(cut);
        }
    }
}

pub(super) struct FinishedAttempt {
    pub(super) claim: Claim,
    /// As it was when the attempt started.
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) outcome: Outcome,
    pub(super) load: ReceiverLoad,
    pub(super) sign: Sign,
    pub(super) started_at: Timestamp,
    pub(super) duration: Duration,
    pub(super) settle_span: Option<SettleSpan>,
    pub(super) epoch: i64,
}

/// An attempt that could not start because this node lacks a resource.
pub(super) struct PreventedAttempt {
    pub(super) claim: Claim,
    pub(super) shortage: Shortage,
    pub(super) epoch: i64,
}

impl Attempt {
    pub(super) async fn run(self) -> Result<FinishedAttempt, Box<PreventedAttempt>> {
        let began = Instant::now();
        let held = CutOffAttempt { claim: self.claim, started_at: self.started_at };
        let held = ClaimGuard { claim: Some(held), cut_off: self.cut_off };
        let span =
            self.tracer.as_ref().map(|tracer| AttemptSpan::begin(tracer, held.claim(), &self.sink.endpoint));
        let message = match &span {
            Some(span) => span.carried(&held.claim().message),
            None => held.claim().message.clone(),
        };
        let delivery = Delivery {
            message,
            store: self.store,
            attempt: held.claim().attempt,
            capture: self.capture,
            now: self.started_at,
        };
        let result = try_once(&self.sink, &delivery, self.timeout).await;
        let result = match result {
            Ok(receipt) => Ok(receipt),
            Err(Undelivered::Failed(failure)) => Err(failure),
            Err(Undelivered::Short(shortage)) => {
                if let Some(span) = span {
                    span.end_prevented(&shortage);
                }
                return Err(Box::new(PreventedAttempt { claim: held.take(), shortage, epoch: self.epoch }));
            }
        };
        Ok(FinishedAttempt {
            claim: held.take(),
            endpoint: self.sink.endpoint.clone(),
            settle_span: span.map(|span| span.end(&result)),
            load: load(&result),
            sign: sign(&result),
            outcome: match result {
                Ok(receipt) => Outcome::Delivered(receipt),
                Err(failure) => Outcome::Failed(failure),
            },
            started_at: self.started_at,
            duration: began.elapsed(),
            epoch: self.epoch,
        })
    }
}

pub(super) async fn try_once(
    sink: &EndpointSink,
    delivery: &Delivery,
    timeout: Duration,
) -> Result<Receipt, Undelivered> {
    let trying = async {
        let deliver = AssertUnwindSafe(deliver(sink, delivery)).catch_unwind();
        let failure = match tokio::time::timeout(timeout, deliver).await {
            Ok(Ok(result)) => return result,
            Ok(Err(_panic)) => Failure::retryable("the sink panicked"),
            Err(_elapsed) => Failure::timed_out(timeout),
        };
        Err(Failure { ambiguous: HANDED_OVER.with(Cell::get), ..failure }.into())
    };
    HANDED_OVER.scope(Cell::new(false), trying).await
}

async fn deliver(sink: &EndpointSink, delivery: &Delivery) -> Result<Receipt, Undelivered> {
    let ConnectedSink { sink, mask } = sink.connected().await?;
    let masked = |body: Option<Bytes>| body.map(|body| mask.apply(&body, delivery.capture.bytes_max));
    match sink.deliver(delivery).await {
        Ok(receipt) => Ok(Receipt { body: masked(receipt.body), ..receipt }),
        Err(Undelivered::Failed(failure)) => {
            let error = mask.apply_to_text(&failure.error);
            Err(Failure { error, body: masked(failure.body), ..failure }.into())
        }
        Err(Undelivered::Short(shortage)) => Err(shortage.into()),
    }
}

fn load(result: &Result<Receipt, Failure>) -> ReceiverLoad {
    match result {
        Ok(_) => ReceiverLoad::Fine,
        Err(failure) if failure.is_overload() => ReceiverLoad::Overloaded,
        Err(_) => ReceiverLoad::Unknown,
    }
}

fn sign(result: &Result<Receipt, Failure>) -> Sign {
    match result {
        Ok(_) => Sign::Healthy,
        Err(failure) if failure.counts_for_breaker() => Sign::Failing,
        Err(_) => Sign::Neutral,
    }
}
