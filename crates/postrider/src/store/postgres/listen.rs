//! What the database tells nodes without being asked: `LISTEN postrider` on a connection of its own. A payload
//! is the id of an endpoint that has new work, or `config`. An idle node asks nothing.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{AsyncMessage, Client};

use super::Shared;
use super::connect::{Server, ServerConnection};
use super::errors::store_error;
use super::stragglers::{Snapshot, Stragglers};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{Arrival, Result};

const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);

/// Ends with the value.
pub(super) struct Ear(JoinHandle<()>);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns once the database tells everything that is committed from now on.
pub(super) async fn begin(shared: &Arc<Shared>) -> Result<Ear> {
    let (client, connection) = shared.server.connect().await?;
    let (ready, listening) = oneshot::channel();
    let run = run(Arc::downgrade(shared), shared.server.clone(), client, connection, ready);
    let ear = Ear(tokio::spawn(run));
    let ended = || Err(StoreError::Unavailable("the connection that listens ended".to_owned()));
    listening.await.unwrap_or_else(|_| ended())?;
    Ok(ear)
}

/// Listens, and connects again by itself whenever the connection ends.
async fn run(
    shared: Weak<Shared>,
    server: Server,
    client: Client,
    connection: ServerConnection,
    ready: oneshot::Sender<Result<()>>,
) {
    let session = server.session();
    let first = listen(&shared, &session, client, connection, |listening| drop(ready.send(listening)));
    until_silent(&server, first).await;
    let mut pause = RECONNECT_MIN;
    while shared.strong_count() > 0 {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
        let Ok((client, connection)) = server.connect().await else { continue };
        // Nobody knows what was told meanwhile.
        let look_everywhere = |listening: Result<()>| {
            if let (Ok(()), Some(shared)) = (listening, shared.upgrade()) {
                shared.listeners.tell(|| Arrival::Reconfigured);
                shared.listeners.tell(|| Arrival::Outside);
                pause = RECONNECT_MIN;
            }
        };
        until_silent(&server, listen(&shared, &session, client, connection, look_everywhere)).await;
    }
}

async fn until_silent(server: &Server, listening: impl Future<Output = ()>) {
    tokio::select! {
        () = listening => {}
        () = server.found_silent() => {}
    }
}

/// Until the connection ends.
async fn listen(
    shared: &Weak<Shared>,
    session: &str,
    client: Client,
    mut connection: ServerConnection,
    listening: impl FnOnce(Result<()>),
) {
    let (rung, bells) = mpsc::unbounded_channel();
    let hear = async {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            let (Some(shared), AsyncMessage::Notification(told)) = (shared.upgrade(), message) else {
                continue;
            };
            let in_an_old_place = told.payload().strip_prefix("back:");
            match in_an_old_place.unwrap_or(told.payload()).parse().map(EndpointId) {
                Ok(endpoint) => {
                    if in_an_old_place.is_some() {
                        shared.cursors.returned(endpoint);
                    }
                    let _ = rung.send(endpoint);
                }
                Err(_) => shared.listeners.tell(|| Arrival::Reconfigured),
            }
        }
    };
    let attend = async {
        let listen = format!("{session}; LISTEN postrider");
        listening(client.batch_execute(&listen).await.map_err(store_error));
        attend(shared, &client, bells).await
    };
    tokio::select! {
        () = hear => {}
        _ = attend => {}
    }
}

/// Tells nodes of the endpoints whose bell was rung, and again as long as there are stragglers.
async fn attend(
    shared: &Weak<Shared>,
    client: &Client,
    mut bells: mpsc::UnboundedReceiver<EndpointId>,
) -> Result<()> {
    let look = "SELECT pg_current_snapshot()::text, CASE WHEN $1 THEN pg_current_xact_id()::text END";
    let look = client.prepare(look).await.map_err(store_error)?;
    let mut awaited: HashMap<EndpointId, Stragglers> = HashMap::new();
    loop {
        let look_at = awaited.values().map(|stragglers| stragglers.look_at).min();
        let mut rung = Vec::new();
        tokio::select! {
            biased;
            _ = bells.recv_many(&mut rung, usize::MAX) => {}
            () = sleep_until(look_at) => {}
        }
        let row = client.query_one(&look, &[&!rung.is_empty()]).await.map_err(store_error)?;
        let Some(snapshot) = Snapshot::parse(row.get(0)) else { continue };
        if let Some(next) = row.get::<_, Option<&str>>(1).and_then(|next| next.parse().ok()) {
            let since = Instant::now();
            awaited.extend(rung.into_iter().map(|endpoint| (endpoint, Stragglers::since(since, next))));
        }
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let now = Instant::now();
        awaited.retain(|endpoint, stragglers| {
            if stragglers.look_at > now {
                return true;
            }
            let look = stragglers.look(&snapshot, now);
            if look.tell {
                shared.listeners.tell(|| Arrival::Pending(*endpoint));
            }
            !look.over
        });
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}
