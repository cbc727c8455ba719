//! `postrider demo`: the newcomer's first minute. A temporary store, receivers that misbehave, a few
//! thousand messages, and at the end an account that is checked against the store and the receivers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::Environment;
use postrider::store::sqlite::SqliteOptions;
use postrider::{Engine, EngineOptions, NewEndpoint, Operate, SqliteStore, Store};
use serde_json::{Value, json};

use account::Account;
use plan::DemoPlan;
use receiver::{Misbehaviour, Outage, Receiver};
use screen::Screen;
use tally::DemoTally;

use crate::failure::CommandError;
use crate::output::Output;

mod account;
mod ledger;
mod load;
mod plan;
mod receiver;
mod screen;
mod tally;

pub(crate) const ORDERS: &str = "orders";
pub(crate) const ALERTS: &str = "alerts";

/// Far above any retry the demo needs; the account checks that no message got past it.
const ATTEMPTS_MAX: u32 = 20;
/// A stalled receiver answers after twice this time, so its acknowledgement is lost.
const TIMEOUT: Duration = Duration::from_millis(1000);
/// If something is not settled by then, the account says so.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
pub(crate) struct DemoArgs {
    /// How many messages to send
    #[arg(long, value_name = "N", default_value_t = 3000, value_parser = clap::value_parser!(u32).range(20..=1_000_000))]
    messages: u32,

    /// Misbehave the same way again; without it every run differs
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

pub(crate) async fn run(arguments: DemoArgs, output: Output) -> Result<(), CommandError> {
    let seed = arguments.seed.unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let plan = DemoPlan::draw(arguments.messages, seed);
    let account = tokio::select! {
        account = play(&plan, output) => account?,
        _ = tokio::signal::ctrl_c() => return Err(CommandError::failed("interrupted; the temporary store is gone")),
    };
    output.document(|| account.json().to_string(), || account.text(output))?;
    match account.complaints.is_empty() {
        true => Ok(()),
        false => Err(CommandError::failed(format!(
            "the account does not add up: {}",
            account.complaints.join("; ")
        ))),
    }
}

async fn play(plan: &DemoPlan, output: Output) -> Result<Account, CommandError> {
    let folder = tempfile::Builder::new()
        .prefix("postrider-demo-")
        .tempdir()
        .map_err(|error| CommandError::failed(format!("cannot make a temporary folder: {error}")))?;
    let path = folder.path().join("demo.db");
    let store = tokio::task::spawn_blocking(move || SqliteStore::open(SqliteOptions::node(path)))
        .await
        .expect("opening a store does not panic")?;
    let store = Arc::new(store);
    let tally = Arc::new(DemoTally::default());
    // Long runs meet the same two outages; the rest of their time is ordinary weather.
    let orders = Receiver::start(ORDERS, misbehaviour(plan, plan.orders_outage), Arc::clone(&tally)).await?;
    let alerts = Receiver::start(ALERTS, misbehaviour(plan, plan.alerts_outage), Arc::clone(&tally)).await?;
    prepare(&*store, &orders, &alerts).await?;

    let engine = Engine::start(Arc::clone(&store) as Arc<dyn Store>, engine_options()).await?;
    let watching = tokio::spawn(Arc::clone(&tally).watch(engine.events()));
    let screen = Screen::start(plan, Arc::clone(&tally), Arc::clone(&store) as Arc<dyn Operate>, output);

    let began = Instant::now();
    orders.begin();
    alerts.begin();
    let sent = load::send(plan, &*store, &tally, began).await?;
    let settled = until_settled(&*store).await?;
    let seconds = began.elapsed().as_secs_f64();
    engine.stop().await;
    screen.stop().await;
    watching.abort();

    let ledgers = [orders.stop(), alerts.stop()];
    let mut account =
        Account::draw_up(&*store, &Store::name(&*store), plan, &sent, &ledgers, seconds).await?;
    account.circuits_opened = tally.circuits_opened();
    if !settled {
        account.complaints.push(format!("not everything was settled within {} s", PATIENCE.as_secs()));
    }
    Ok(account)
}

fn misbehaviour(plan: &DemoPlan, outage: Outage) -> Misbehaviour {
    Misbehaviour { seed: plan.seed, outage, stall: TIMEOUT * 2 }
}

fn engine_options() -> EngineOptions {
    let environment = Environment { allow_internal: true, ..Environment::default() };
    EngineOptions { environment, ..EngineOptions::default() }
}

async fn prepare(store: &dyn Operate, orders: &Receiver, alerts: &Receiver) -> Result<(), CommandError> {
    // The shortest rest a circuit may take, so that a newcomer sees it close again.
    let settings = [("circuit_breaker_cooldown", "5"), ("attempt_log", "all")];
    store.configure(settings.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()).await?;
    for receiver in [orders, alerts] {
        let endpoint = NewEndpoint {
            name: receiver.name().to_owned(),
            protocol: "http".to_owned(),
            config: match json!({ "url": receiver.url(), "timeout": TIMEOUT.as_secs_f64() }) {
                Value::Object(config) => config,
                _ => unreachable!("an object was written"),
            },
            retry_policy: Some(json!({
                "max_attempts": ATTEMPTS_MAX, "base_delay_seconds": 0.2, "max_delay_seconds": 2, "jitter": 0.2,
            })),
            options: None,
        };
        store.create_endpoint(endpoint).await?;
    }
    Ok(())
}

/// True when nothing is pending or processing any more.
async fn until_settled(store: &dyn Operate) -> Result<bool, CommandError> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        let status = store.status().await?;
        if status.pending + status.processing == 0 {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(false)
}
