//! One try: connect if need be, deliver under one deadline, survive a panicking sink.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use jiff::Timestamp;
use tokio::sync::{OnceCell, mpsc};
use tokio::time::Instant;

use super::concurrency::Load;
use super::mask::Mask;
use super::spans::{AttemptSpan, Settling};
use crate::breaker::Sign;
use crate::endpoint::Endpoint;
use crate::message::Claim;
use crate::sink::net::{blocking, judge};
use crate::sink::{self, Capture, Delivery, Environment, Shortage, Sink, Undelivered};
use crate::trace::Tracer;
use crate::verdict::{Failure, Outcome, Receipt};

/// A sink that is connected by the first attempt that needs it, and anew after every change of config.
pub(super) struct Connection {
    pub(super) endpoint: Arc<Endpoint>,
    environment: Arc<Environment>,
    connected: OnceCell<Connected>,
}

struct Connected {
    sink: Arc<dyn Sink>,
    mask: Mask,
}

impl Connection {
    pub(super) fn new(endpoint: Arc<Endpoint>, environment: Arc<Environment>) -> Self {
        Self { endpoint, environment, connected: OnceCell::new() }
    }

    async fn connected(&self) -> Result<&Connected, Undelivered> {
        let connect = async || {
            let (endpoint, environment) = (self.endpoint.clone(), self.environment.clone());
            // Reads secrets and certificates from files.
            let connect = move || {
                let sink = sink::connect(&endpoint, &environment)?;
                Ok(Connected { sink, mask: Mask::of(&endpoint, &environment)? })
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
    pub(super) connection: Arc<Connection>,
    pub(super) store: Arc<str>,
    pub(super) capture: Capture,
    pub(super) timeout: Duration,
    pub(super) started_at: Timestamp,
    pub(super) tracer: Option<Tracer>,
    /// The circuit's epoch when it began.
    pub(super) epoch: i64,
    /// Where its claim goes when it is aborted.
    pub(super) cut_off: mpsc::UnboundedSender<CutOff>,
}

/// An attempt that was aborted because the node stops.
pub(super) struct CutOff {
    pub(super) claim: Claim,
    pub(super) started_at: Timestamp,
}

/// A claim while its attempt runs: dropped with the attempt, it comes back as [`CutOff`].
struct InHand {
    claim: Option<CutOff>,
    cut_off: mpsc::UnboundedSender<CutOff>,
}

impl InHand {
    fn claim(&self) -> &Claim {
        &self.claim.as_ref().expect("in hand until it is taken").claim
    }

    fn take(mut self) -> Claim {
        self.claim.take().expect("taken once").claim
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        if let Some(cut) = self.claim.take() {
            // Nobody listens when the whole process ends.
            let _ = self.cut_off.send(cut);
        }
    }
}

pub(super) struct Finished {
    pub(super) claim: Claim,
    /// As it was when the attempt began.
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) outcome: Outcome,
    pub(super) load: Load,
    pub(super) sign: Sign,
    pub(super) started_at: Timestamp,
    pub(super) duration: Duration,
    pub(super) settling: Option<Settling>,
    pub(super) epoch: i64,
}

/// It could not be made, for want of something on this node.
pub(super) struct Prevented {
    pub(super) claim: Claim,
    pub(super) shortage: Shortage,
    pub(super) epoch: i64,
}

impl Attempt {
    pub(super) async fn run(self) -> Result<Finished, Box<Prevented>> {
        let began = Instant::now();
        let held = CutOff { claim: self.claim, started_at: self.started_at };
        let held = InHand { claim: Some(held), cut_off: self.cut_off };
        let span = self
            .tracer
            .as_ref()
            .map(|tracer| AttemptSpan::begin(tracer, held.claim(), &self.connection.endpoint));
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
        let (result, timed_out) = try_once(&self.connection, &delivery, self.timeout).await;
        let result = match result {
            Ok(receipt) => Ok(receipt),
            Err(Undelivered::Failed(failure)) => Err(failure),
            Err(Undelivered::Short(shortage)) => {
                if let Some(span) = span {
                    span.end_prevented(&shortage);
                }
                return Err(Box::new(Prevented { claim: held.take(), shortage, epoch: self.epoch }));
            }
        };
        Ok(Finished {
            claim: held.take(),
            endpoint: self.connection.endpoint.clone(),
            settling: span.map(|span| span.end(&result)),
            load: load(&result, timed_out),
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

/// What the receiver said, and whether it took too long to say anything.
pub(super) async fn try_once(
    connection: &Connection,
    delivery: &Delivery,
    timeout: Duration,
) -> (Result<Receipt, Undelivered>, bool) {
    let deliver = AssertUnwindSafe(deliver(connection, delivery)).catch_unwind();
    match tokio::time::timeout(timeout, deliver).await {
        Ok(Ok(result)) => (result, false),
        Ok(Err(_panic)) => (Err(Failure::retryable("the sink panicked").into()), false),
        Err(_elapsed) => {
            let seconds = timeout.as_secs_f64();
            (Err(Failure::retryable(format!("timed out after {seconds} s")).into()), true)
        }
    }
}

async fn deliver(connection: &Connection, delivery: &Delivery) -> Result<Receipt, Undelivered> {
    let Connected { sink, mask } = connection.connected().await?;
    let masked = |body: Option<Bytes>| body.map(|body| mask.over(&body, delivery.capture.bytes_max));
    match sink.deliver(delivery).await {
        Ok(receipt) => Ok(Receipt { body: masked(receipt.body), ..receipt }),
        Err(Undelivered::Failed(failure)) => Err(Failure { body: masked(failure.body), ..failure }.into()),
        Err(Undelivered::Short(shortage)) => Err(shortage.into()),
    }
}

fn load(result: &Result<Receipt, Failure>, timed_out: bool) -> Load {
    match result {
        Ok(_) => Load::Fine,
        Err(_) if timed_out => Load::Overloaded,
        Err(Failure { status: Some(429 | 500..=599), .. }) => Load::Overloaded,
        Err(_) => Load::Unknown,
    }
}

fn sign(result: &Result<Receipt, Failure>) -> Sign {
    match result {
        Ok(_) => Sign::Healthy,
        Err(failure) if failure.counts_for_breaker() => Sign::Failing,
        Err(_) => Sign::Neutral,
    }
}
