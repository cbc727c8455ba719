//! What the database tells nodes without being asked: `LISTEN postrider` on a connection of its own. A payload
//! is the id of an endpoint that has new work, or `config`.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client};

use super::Shared;
use super::connect::ServerConnection;
use super::errors::store_error;
use crate::endpoint::EndpointId;
use crate::message::Claim;
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
    let task = tokio::spawn(run(Arc::downgrade(shared), client, connection, ready));
    let ear = Ear(task);
    listening.await.unwrap_or_else(|_| {
        Err(crate::error::StoreError::Unavailable("the connection that listens ended".to_owned()))
    })?;
    Ok(ear)
}

/// Listens, and connects again by itself whenever the connection ends.
async fn run(
    shared: Weak<Shared>,
    client: Client,
    connection: ServerConnection,
    ready: oneshot::Sender<Result<()>>,
) {
    listen(&shared, client, connection, |listening| drop(ready.send(listening))).await;
    let mut pause = RECONNECT_MIN;
    loop {
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
        let Some(alive) = shared.upgrade() else { return };
        let server = alive.server.clone();
        drop(alive);
        if let Ok((client, connection)) = server.connect().await {
            let heard = shared.clone();
            // Nobody knows what was told meanwhile.
            let look_everywhere = |listening: Result<()>| {
                if let (Ok(()), Some(shared)) = (listening, heard.upgrade()) {
                    shared.listeners.tell(|| Arrival::Reconfigured);
                    shared.listeners.tell(|| Arrival::Outside);
                    pause = RECONNECT_MIN;
                }
            };
            listen(&shared, client, connection, look_everywhere).await;
        }
    }
}

/// Until the connection ends.
async fn listen(
    shared: &Weak<Shared>,
    client: Client,
    mut connection: ServerConnection,
    listening: impl FnOnce(Result<()>),
) {
    let hear = async {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            let Some(shared) = shared.upgrade() else { return };
            if let AsyncMessage::Notification(notification) = message {
                heard(&shared, notification.payload());
            }
        }
    };
    let subscribe = async {
        listening(client.batch_execute("LISTEN postrider").await.map_err(store_error));
        // The connection lives as long as its client.
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = hear => {}
        () = subscribe => {}
    }
}

fn heard(shared: &Shared, payload: &str) {
    match payload.parse() {
        Ok(id) => shared.listeners.tell(|| Arrival::Pending(EndpointId(id))),
        Err(_) => shared.listeners.tell(|| Arrival::Reconfigured),
    }
}

/// How much goes through this process.
pub(super) fn note_claims(_shared: &Shared, _claims: &[Claim]) {}
