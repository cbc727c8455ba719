//! `bench --sink`: deliveries to a broker of yours, against a bare client of that broker and against a sink that does nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_util::future::{join_all, try_join_all};
use jiff::Timestamp;
use postrider::engine::EngineEventKind;
use postrider::sink::{self, ByProtocol, Capture, ConnectSink, Delivery, Environment, Sink, Undelivered};
use postrider::verdict::Receipt;
use postrider::{Endpoint, Message, MessageId, NewMessage};
use serde_json::{Map, Value};

use super::bed::{Bed, HEALTHY, environment, payload};
use super::lab::Lab;
use super::latency::WARM_UP;
use super::load::CONNECTIONS;
use super::report::{BenchTarget, ReportRow, Rounds, median};
use crate::failure::CommandError;

const DRAIN: Duration = Duration::from_secs(5);
const PERIOD: Duration = Duration::from_millis(5);
const ENDPOINTS: u32 = 1000;
const AT_ONCE: &str = "a sink that acknowledges at once";
/// The targets, as parts of the yardsticks.
const OF_BARE: f64 = 0.5;
const OF_AT_ONCE: f64 = 0.7;
const OF_ONE_ENDPOINT: f64 = 0.8;
/// For the last deliveries at a calm rate.
const ARRIVE_WITHIN: Duration = Duration::from_secs(10);

/// The endpoint to measure.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) protocol: String,
    pub(super) config: Map<String, Value>,
}

pub(super) async fn run(lab: &mut Lab, measured: &Measured) -> Result<Vec<ReportRow>, CommandError> {
    let mut rows = backlog(lab, measured).await?;
    rows.extend(calm(lab, measured).await?);
    Ok(rows)
}

/// One endpoint against the bare client and against a sink that acknowledges at once; a thousand endpoints against one.
async fn backlog(lab: &mut Lab, measured: &Measured) -> Result<Vec<ReportRow>, CommandError> {
    let (mut to_bare, mut to_nothing, mut to_one) = (Rounds::default(), Rounds::default(), Rounds::default());
    let mut bare_name = "";
    for round in 0..lab.scale.rounds {
        let bare = Yardstick::connect(lab, measured).await?;
        bare_name = bare.name();
        lab.say_round(round, bare_name);
        let alone = at_full_speed(lab, &bare).await?;
        drop(bare);
        lab.say_round(round, AT_ONCE);
        let at_once = drain(lab, measured, 1, Arc::new(AtOnce)).await?;
        lab.say_round(round, "a backlog of one endpoint");
        let one = drain(lab, measured, 1, Arc::new(ByProtocol)).await?;
        lab.say_round(round, "a backlog of 1000 endpoints");
        let thousand = drain(lab, measured, ENDPOINTS, Arc::new(ByProtocol)).await?;
        to_bare.add(one, alone);
        to_nothing.add(one, at_once);
        to_one.add(thousand, one);
    }
    let row = |name, rounds: &Rounds, yardstick, target| {
        let (measured, against) = rounds.middle();
        ReportRow {
            name,
            measured,
            unit: "/s",
            yardstick: Some((yardstick, against)),
            target,
            note: format!("{} messages, {CONNECTIONS} in flight", lab.scale.backlog),
        }
    };
    // The lower of the two has to be reached.
    let share = |rounds: &Rounds, least| rounds.ratio() / least;
    let (of_bare, of_nothing) = match share(&to_bare, OF_BARE) >= share(&to_nothing, OF_AT_ONCE) {
        true => (BenchTarget::RatioAtLeast(OF_BARE), BenchTarget::None),
        false => (BenchTarget::None, BenchTarget::RatioAtLeast(OF_AT_ONCE)),
    };
    Ok(vec![
        row("delivery of a backlog", &to_bare, bare_name, of_bare),
        row("delivery of a backlog", &to_nothing, AT_ONCE, of_nothing),
        row(
            "delivery of a backlog of 1000 endpoints",
            &to_one,
            "one endpoint",
            BenchTarget::RatioAtLeast(OF_ONE_ENDPOINT),
        ),
    ])
}

/// From the sender's answer to the broker's, against the round trip of the bare client.
async fn calm(lab: &mut Lab, measured: &Measured) -> Result<Vec<ReportRow>, CommandError> {
    let count = (lab.scale.latency_seconds / PERIOD.as_secs_f64()) as u64 + WARM_UP;
    let bare = Yardstick::connect(lab, measured).await?;
    lab.say(&format!("200 deliveries a second: {}", bare.name()));
    let round_trips = paced_alone(&bare, count).await?;
    lab.say("200 messages a second");
    let under_way = paced(lab, measured, count).await?;
    Ok(vec![ReportRow {
        name: "commit to acknowledgement, median",
        measured: median(&under_way),
        unit: "ms",
        yardstick: Some((bare.name(), median(&round_trips))),
        target: BenchTarget::AboveYardstickBelow(2.0),
        note: format!("200/s, {} messages", under_way.len()),
    }])
}

/// Messages a second from resuming the endpoints until all messages are settled.
async fn drain(
    lab: &mut Lab,
    measured: &Measured,
    endpoints: u32,
    connector: Arc<dyn ConnectSink>,
) -> Result<f64, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    let names: Vec<String> = (0..endpoints).map(|number| format!("{HEALTHY}-{number}")).collect();
    for name in &names {
        bed.create_measured(name, measured).await?;
        bed.fill(name, lab.scale.backlog / endpoints, 0).await?;
    }
    bed.store.pause("the bench has not begun").await?;
    let engine = bed.start_engine_in(Environment { connector, ..environment() }, DRAIN).await?;
    let began = Instant::now();
    bed.store.resume().await?;
    bed.until_empty().await?;
    let rate = f64::from(lab.scale.backlog) / began.elapsed().as_secs_f64();
    engine.stop().await;
    drop(bed);
    lab.discard(store).await?;
    Ok(rate)
}

/// As many deliveries as the backlog has messages, as many at a time as an endpoint has in flight.
async fn at_full_speed(lab: &Lab, bare: &Yardstick) -> Result<f64, CommandError> {
    bare.deliver(0).await?;
    let next = AtomicU32::new(1);
    let began = Instant::now();
    try_join_all((0..CONNECTIONS).map(|_| async {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number > lab.scale.backlog {
                return Ok::<(), CommandError>(());
            }
            bare.deliver(number).await?;
        }
    }))
    .await?;
    Ok(f64::from(lab.scale.backlog) / began.elapsed().as_secs_f64())
}

async fn paced_alone(bare: &Yardstick, count: u64) -> Result<Vec<f64>, CommandError> {
    let mut took = Vec::new();
    let began = Instant::now();
    for number in 1..=count as u32 {
        tokio::time::sleep_until((began + PERIOD * number).into()).await;
        let sent = Instant::now();
        bare.deliver(number).await?;
        if u64::from(number) > WARM_UP {
            took.push(sent.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(took)
}

/// In milliseconds, without the first ones.
async fn paced(lab: &mut Lab, measured: &Measured, count: u64) -> Result<Vec<f64>, CommandError> {
    let store = lab.new_store().await?;
    let bed = Bed::open(&store).await?;
    bed.create_measured(HEALTHY, measured).await?;
    let engine = bed.start_engine(DRAIN).await?;
    let mut events = engine.events();
    let reading = tokio::spawn(async move {
        let mut ages = HashMap::new();
        while ages.len() < count as usize
            && let Ok(Ok(event)) = tokio::time::timeout(ARRIVE_WITHIN, events.recv()).await
        {
            if let EngineEventKind::Attempted { message, class: None, age, .. } = event.kind {
                ages.insert(message, age);
            }
        }
        ages
    });
    let began = Instant::now();
    let sends = join_all((1..=count as u32).map(|number| {
        let store = Arc::clone(&bed.store);
        async move {
            tokio::time::sleep_until((began + PERIOD * number).into()).await;
            let sent = Instant::now();
            let id = store.send(NewMessage::new(HEALTHY, payload(number))).await?.id;
            Ok::<_, CommandError>((id, sent.elapsed()))
        }
    }))
    .await;
    let ages = reading.await.expect("reading events does not panic");
    engine.stop().await;
    drop(bed);
    lab.discard(store).await?;
    let mut under_way = Vec::new();
    for (id, committing) in sends.into_iter().collect::<Result<Vec<_>, _>>()?.split_off(WARM_UP as usize) {
        let age =
            ages.get(&id).ok_or_else(|| CommandError::failed(format!("message {id} did not arrive")))?;
        under_way.push((age.as_secs_f64() - committing.as_secs_f64()) * 1e3);
    }
    Ok(under_way)
}

/// Acknowledges every message at once: what store and engine can do at most.
#[derive(Debug)]
struct AtOnce;

impl ConnectSink for AtOnce {
    fn connect(&self, _: &Endpoint, _: &Environment) -> Result<Arc<dyn Sink>, Undelivered> {
        Ok(Arc::new(Self))
    }
}

#[async_trait]
impl Sink for AtOnce {
    async fn deliver(&self, _: &Delivery) -> Result<Receipt, Undelivered> {
        Ok(Receipt::default())
    }
}

/// What delivers without a store and an engine: a bare client, or the sink itself where this build has none.
enum Yardstick {
    #[cfg(feature = "bare-clients")]
    Client(Box<dyn super::bare::BareClient>),
    Sink(Box<LoneSink>),
}

impl Yardstick {
    async fn connect(lab: &mut Lab, measured: &Measured) -> Result<Self, CommandError> {
        #[cfg(feature = "bare-clients")]
        if let Some(client) = super::bare::connect(measured).await.map_err(bare_failed)? {
            return Ok(Self::Client(client));
        }
        Ok(Self::Sink(Box::new(LoneSink::connect(lab, measured).await?)))
    }

    fn name(&self) -> &'static str {
        match self {
            #[cfg(feature = "bare-clients")]
            Self::Client(_) => "a bare client",
            Self::Sink(_) => "the sink alone",
        }
    }

    async fn deliver(&self, number: u32) -> Result<(), CommandError> {
        match self {
            #[cfg(feature = "bare-clients")]
            Self::Client(client) => client.publish(payload(number)).await.map_err(bare_failed),
            Self::Sink(sink) => sink.deliver(number).await,
        }
    }
}

#[cfg(feature = "bare-clients")]
fn bare_failed(error: super::bare::Failed) -> CommandError {
    CommandError::failed(format!("the bare client failed: {error}"))
}

/// The sink of an endpoint.
struct LoneSink {
    sink: Arc<dyn Sink>,
    endpoint: Endpoint,
}

impl LoneSink {
    async fn connect(lab: &mut Lab, measured: &Measured) -> Result<Self, CommandError> {
        let store = lab.new_store().await?;
        let bed = Bed::open(&store).await?;
        bed.create_measured(HEALTHY, measured).await?;
        let endpoint = bed.store.endpoint(HEALTHY).await?;
        drop(bed);
        lab.discard(store).await?;
        let sink = sink::connect(&endpoint, &environment()).map_err(undelivered)?;
        Ok(Self { sink, endpoint })
    }

    async fn deliver(&self, number: u32) -> Result<(), CommandError> {
        let now = Timestamp::now();
        let message = Message {
            id: MessageId(i64::from(number)),
            endpoint: self.endpoint.id,
            payload: payload(number).into(),
            content_type: "application/json".to_owned(),
            headers: Default::default(),
            options: Map::new(),
            priority: 0,
            expires_at: None,
            correlation_id: None,
            ordering_key: None,
            event_type: None,
            created_at: now,
        };
        let capture = Capture { on_success: false, on_failure: false, bytes_max: 0 };
        let delivery =
            Delivery { message: Arc::new(message), store: "bench".into(), attempt: 1, capture, now };
        self.sink.deliver(&delivery).await.map(drop).map_err(undelivered)
    }
}

fn undelivered(why: Undelivered) -> CommandError {
    CommandError::failed(match why {
        Undelivered::Failed(failure) => format!("the receiver did not take a message: {}", failure.error),
        Undelivered::Short(shortage) => shortage.to_string(),
    })
}
