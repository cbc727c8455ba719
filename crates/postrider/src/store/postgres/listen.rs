//! Notifications: `LISTEN postrider` on a separate connection. A payload is the id of an endpoint that has new work, `back:` and
//! the id when the work may be before a cursor, `circuit`, or `config`. An idle node sends no queries.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_postgres::{AsyncMessage, Client};

use super::SharedState;
use super::connect::{Server, ServerConnection};
use super::errors::store_error;
use super::late_commits::{LateCommits, TransactionSnapshot};
use crate::endpoint::EndpointId;
use crate::error::StoreError;
use crate::store::{Arrival, Result};

const RECONNECT_MIN: Duration = Duration::from_millis(50);
const RECONNECT_MAX: Duration = Duration::from_secs(2);

/// The task that listens; dropping it ends the task.
pub(super) struct ListenTask(JoinHandle<()>);

impl Drop for ListenTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns once the database notifies of everything that is committed from now on.
pub(super) async fn begin(shared: &Arc<SharedState>) -> Result<ListenTask> {
    let (client, connection) = shared.server.connect().await?;
    let (ready, listening) = oneshot::channel();
    let run = run(Arc::downgrade(shared), shared.server.clone(), client, connection, ready);
    let listener = ListenTask(tokio::spawn(run));
    let ended = || Err(StoreError::Unavailable("the connection that listens ended".to_owned()));
    listening.await.unwrap_or_else(|_| ended())?;
    Ok(listener)
}

/// Listens, and reconnects whenever the connection ends.
async fn run(
    shared: Weak<SharedState>,
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
        // Notifications were missed meanwhile.
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
    shared: &Weak<SharedState>,
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
                Err(_) if told.payload() == "circuit" => shared.listeners.tell(|| Arrival::CircuitMoved),
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

/// Tells nodes of the endpoints that were notified, and again until the late commits have ended.
async fn attend(
    shared: &Weak<SharedState>,
    client: &Client,
    mut bells: mpsc::UnboundedReceiver<EndpointId>,
) -> Result<()> {
    let look = "SELECT pg_current_snapshot()::text, CASE WHEN $1 THEN pg_current_xact_id()::text END";
    let look = client.prepare(look).await.map_err(store_error)?;
    let mut awaited: HashMap<EndpointId, LateCommits> = HashMap::new();
    loop {
        let look_at = awaited.values().map(|late_commits| late_commits.look_at).min();
        let mut rung = Vec::new();
        tokio::select! {
            biased;
            _ = bells.recv_many(&mut rung, usize::MAX) => {}
            () = sleep_until(look_at) => {}
        }
        let row = client.query_one(&look, &[&!rung.is_empty()]).await.map_err(store_error)?;
        let Some(snapshot) = TransactionSnapshot::parse(row.get(0)) else { continue };
        if let Some(next) = row.get::<_, Option<&str>>(1).and_then(|next| next.parse().ok()) {
            let since = Instant::now();
            awaited.extend(rung.into_iter().map(|endpoint| (endpoint, LateCommits::since(since, next))));
        }
        let Some(shared) = shared.upgrade() else { return Ok(()) };
        let now = Instant::now();
        awaited.retain(|endpoint, late_commits| {
            if late_commits.look_at > now {
                return true;
            }
            let look = late_commits.look(&snapshot, now);
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
