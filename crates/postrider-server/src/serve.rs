//! A node: engine and API over one store, until a signal stops it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, RwLock};
use std::time::Duration;

use console::style;
use postrider::endpoint::EndpointId;
use postrider::engine::{EngineEvent, TestDelivery};
use postrider::sink::{Environment, Kept, SinkConnection};
use postrider::store::{NodeLimits, TokenKey};
use postrider::{Endpoint, Engine, EngineOptions, NewMessage, Store, StoreError};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::broadcast::Receiver;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::api::{self, Api, ApiGate};
use crate::config::Config;
use crate::failure::CommandError;
use crate::metrics::Metrics;
use crate::open_files;
use crate::store_url::{NodeStore, StoreUrl};
use crate::traces::Traces;

/// Exit code of a process that a second signal ended: 128 + SIGINT, as shells count.
const EXIT_AT_ONCE: i32 = 130;
/// How often a store is asked that cannot be opened or joined yet, and how often that is said.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const SAY_AGAIN: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extras {
    /// `POST /bench/empty`, for `postrider bench` only.
    pub(crate) bench_route: bool,
}

pub(crate) async fn run(config: Config, extras: Extras) -> Result<(), CommandError> {
    let mut signals = Signals::new()?;
    let limits = open_files::shared(open_files::raised(), config.engine.max_in_flight);
    warn_of_unknown_variables();
    let Opened { store, keys, created } = tokio::select! {
        opened = open(&config) => opened?,
        name = signals.next() => {
            tracing::info!(signal = name, "Stopped before the store could be opened");
            return Ok(());
        }
    };
    refuse_strangers(&config, !keys.is_empty())?;
    let listener = TcpListener::bind(config.listen).await.map_err(|error| deaf(config.listen, &error))?;
    let address = listener
        .local_addr()
        .map_err(|error| CommandError::failed(format!("the listener has no address: {error}")))?;
    let traces = Traces::from_environment()?;
    let tracer = traces.as_ref().map(Traces::tracer);
    let kept = Arc::new(Kept::up_to(limits.idle_connections_max as usize));
    let options = EngineOptions {
        max_in_flight: limits.max_in_flight,
        environment: Environment { kept, ..config.engine.environment.clone() },
        tracer: tracer.clone(),
        ..config.engine.clone()
    };
    let measures = Arc::new(OnceLock::new());
    let metrics = Metrics::new(store.api.clone(), measures.clone());
    let node = Arc::new(ServedNode::new(limits));

    let stop = CancellationToken::new();
    let api = Api::new(store.api, Arc::clone(&node) as Arc<dyn api::NodeHandle>, tracer, stop.clone());
    let mut router = api::with_metrics(api::router(api), metrics);
    if extras.bench_route {
        router = api::with_empty_route(router);
    }
    let gate = ApiGate::new(store.keyring, keys, address);
    let drained = CancellationToken::new();
    let clients_max = limits.client_connections_max as usize;
    let serving =
        tokio::spawn(api::serve(listener, router, gate, clients_max, stop.clone(), drained.clone()));
    let engine = tokio::select! {
        started = start(store.engine, options, &node, address) => Some(started?),
        name = signals.next() => {
            tracing::info!(signal = name, "Stopping before the store could be joined");
            None
        }
    };
    if let Some(engine) = engine {
        let _ = measures.set(engine.measures());
        node.runs(engine);
        greet(&config.store, created, address);
        open_files::tell(&limits, config.engine.max_in_flight);
        tracing::info!(store = %config.store, %address, node = config.engine.node_name, "Postrider is ready");
        let name = signals.next().await;
        tracing::info!(signal = name, drain_timeout = ?config.engine.drain_timeout, "Stopping");
    }
    stop.cancel();
    let stopped = async {
        let engine = async {
            node.stop().await;
            drained.cancel();
        };
        let (_, ()) = tokio::join!(tokio::time::timeout(config.engine.drain_timeout, serving), engine);
        if let Some(traces) = traces {
            traces.stop().await;
        }
    };
    tokio::select! {
        () = stopped => tracing::info!("Stopped; what was not delivered stays in the store"),
        name = signals.next() => {
            tracing::warn!(signal = name, "Stopping at once; claims go back when the lease runs out");
            std::process::exit(EXIT_AT_ONCE);
        }
    }
    Ok(())
}

fn deaf(listen: SocketAddr, error: &std::io::Error) -> CommandError {
    let failure = CommandError::failed(format!("cannot listen on {listen}: {error}"));
    match error.kind() {
        ErrorKind::AddrInUse => {
            failure.hint("is a node running there already? --listen 127.0.0.1:7172 takes another port")
        }
        _ => failure,
    }
}

struct Opened {
    store: NodeStore,
    keys: Vec<TokenKey>,
    created: bool,
}

/// An application may write to the file for long, and a disk may be full: both end without a restart of the node.
async fn open(config: &Config) -> Result<Opened, CommandError> {
    let mut waiting = WaitNotice::default();
    loop {
        match open_now(config).await {
            Err(failure) if failure.is_temporary() && config.store.path().is_some() => {
                waiting.say(|| {
                    tracing::warn!(error = failure.error, "The store cannot be opened yet; trying again");
                });
                tokio::time::sleep(ASK_AGAIN).await;
            }
            opened => return opened,
        }
    }
}

async fn open_now(config: &Config) -> Result<Opened, CommandError> {
    let created = !config.store.exists().await?;
    if created {
        refuse_strangers(config, false)?;
    }
    let store = config.store.open_node(config.migrate).await?;
    let keys = store.keyring.keys().await?;
    Ok(Opened { store, keys, created })
}

/// The same for the first thing that a node writes. Meanwhile the API answers, and `/readyz` says what is in the way.
async fn start(
    store: Arc<dyn Store>,
    options: EngineOptions,
    node: &ServedNode,
    address: SocketAddr,
) -> Result<Engine, StoreError> {
    let mut waiting = WaitNotice::default();
    loop {
        match Engine::start(store.clone(), options.clone()).await {
            Err(StoreError::Unavailable(error)) => {
                waiting.say(|| {
                    tracing::warn!(error, %address, "cannot join the store yet, nothing is delivered; retrying");
                });
                node.waits(error);
                tokio::time::sleep(ASK_AGAIN).await;
            }
            started => return started,
        }
    }
}

/// Logs from time to time what a node waits for.
#[derive(Default)]
struct WaitNotice {
    said_at: Option<Instant>,
}

impl WaitNotice {
    fn say(&mut self, say: impl FnOnce()) {
        if self.said_at.is_none_or(|at| at.elapsed() >= SAY_AGAIN) {
            self.said_at = Some(Instant::now());
            say();
        }
    }
}

/// The engine while it runs. Stopping takes it out: later requests find none.
struct ServedNode {
    stage: RwLock<NodeStage>,
    limits: NodeLimits,
}

enum NodeStage {
    /// Cannot join the store yet; why.
    Starting(Option<String>),
    Running(Engine),
    Stopped,
}

impl ServedNode {
    fn new(limits: NodeLimits) -> Self {
        Self { stage: RwLock::new(NodeStage::Starting(None)), limits }
    }

    fn waits(&self, error: String) {
        self.enter(NodeStage::Starting(Some(error)));
    }

    fn runs(&self, engine: Engine) {
        self.enter(NodeStage::Running(engine));
    }

    fn enter(&self, stage: NodeStage) -> NodeStage {
        std::mem::replace(&mut *self.stage.write().expect("nothing panics while it holds the engine"), stage)
    }

    fn ask<T>(&self, question: impl FnOnce(&Engine) -> T) -> Option<T> {
        match &*self.stage.read().expect("nothing panics while it holds the engine") {
            NodeStage::Running(engine) => Some(question(engine)),
            NodeStage::Starting(_) | NodeStage::Stopped => None,
        }
    }

    async fn stop(&self) {
        if let NodeStage::Running(engine) = self.enter(NodeStage::Stopped) {
            engine.stop().await;
        }
    }
}

impl api::NodeHandle for ServedNode {
    fn is_progressing(&self) -> bool {
        self.ask(Engine::is_progressing).unwrap_or(false)
    }

    fn waits_for(&self) -> Option<String> {
        match &*self.stage.read().expect("nothing panics while it holds the engine") {
            NodeStage::Starting(why) => why.clone(),
            NodeStage::Running(_) | NodeStage::Stopped => None,
        }
    }

    fn events(&self) -> Option<Receiver<EngineEvent>> {
        self.ask(Engine::events)
    }

    fn limits(&self) -> Option<NodeLimits> {
        Some(self.limits)
    }

    fn connection(&self, endpoint: EndpointId) -> Option<SinkConnection> {
        self.ask(|engine| engine.connection(endpoint)).flatten()
    }

    fn test_delivery(
        &self,
        endpoint: Endpoint,
        message: NewMessage,
        body_bytes_max: usize,
    ) -> Option<TestDelivery> {
        self.ask(|engine| engine.test_delivery(endpoint, message, body_bytes_max))
    }
}

/// Anyone who reaches the API may use it as long as it has no tokens, so it stays on this machine until then.
fn refuse_strangers(config: &Config, has_tokens: bool) -> Result<(), CommandError> {
    if has_tokens || config.listen.ip().is_loopback() {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "listen: {} can be reached from other machines, and the store has no tokens: anyone could send through it",
        config.listen
    ))
    .hint("make one with `postrider token create NAME admin`, or listen on a loopback address such as 127.0.0.1:7171"))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, CommandError> {
        let listen = |kind| {
            signal(kind).map_err(|error| CommandError::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// Shown to a person who started it by hand; a service manager gets the log line only.
fn greet(store: &StoreUrl, created: bool, address: SocketAddr) {
    if !console::user_attended_stderr() {
        return;
    }
    let label = |text: &str| style(format!("{text:<8}")).dim().for_stderr();
    let made = if created { "  (new)" } else { "" };
    eprintln!();
    eprintln!("  {} {}", style("postrider").bold().for_stderr(), env!("CARGO_PKG_VERSION"));
    eprintln!();
    eprintln!("  {}{store}{made}", label("store"));
    eprintln!("  {}http://{address}/v1", label("api"));
    eprintln!("  {}http://{address}/readyz", label("health"));
    eprintln!("  {}http://{address}/metrics", label("metrics"));
    eprintln!("  {}Ctrl-C waits for running attempts; twice ends at once", label("stop"));
    eprintln!();
}

/// A mistyped variable would be ignored in silence. It is not refused, because others set variables
/// with this prefix too (service discovery).
fn warn_of_unknown_variables() {
    const KNOWN: [&str; 14] = [
        "POSTRIDER_STORE",
        "POSTRIDER_CONFIG",
        "POSTRIDER_LISTEN",
        "POSTRIDER_MIGRATE",
        "POSTRIDER_ALLOW_INTERNAL",
        "POSTRIDER_ALLOW_NET",
        "POSTRIDER_SECRETS_DIR",
        "POSTRIDER_FILE_ROOT",
        "POSTRIDER_MAX_IN_FLIGHT",
        "POSTRIDER_DRAIN_TIMEOUT",
        "POSTRIDER_LOG_FORMAT",
        "POSTRIDER_LOG",
        // Of commands that ask a node; a machine may have them for everybody.
        "POSTRIDER_URL",
        "POSTRIDER_TOKEN",
    ];
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str() else { continue };
        let ours = name.starts_with("POSTRIDER_") && !name.starts_with("POSTRIDER_SECRET_");
        if ours && !KNOWN.contains(&name) {
            tracing::warn!(
                variable = name,
                known = KNOWN.join(", "),
                "This environment variable is not known"
            );
        }
    }
}
