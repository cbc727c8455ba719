//! The connection that claims and settles go over. It has one of its own for two reasons: what is asked in one
//! breath is sent in one, so that settling and claiming anew cost one round trip; and it commits
//! asynchronously, because a claim or settlement that a crash of the database forgets means a message
//! delivered twice, never one lost.

use std::sync::{Arc, Mutex};

use tokio_postgres::{Client, Statement};

use super::connect::Server;
use super::errors::store_error;
use crate::store::Result;

const CLAIM: &str = "SELECT want, id, attempt, attempts_before, losses, endpoint_id, priority, due_at, created_at,
    expires_at, correlation_id, content_type, ordering_key, event_type, headers, options, payload, next, next_at
  FROM postrider._claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
/// Plans are kept, and one that was made while the queue was short goes on when it is long: reading all of it, for each
/// claim, until the server's statistics notice. So no plan may read all of it.
const SESSION: &str = "SET synchronous_commit = off; SET enable_seqscan = off; SET enable_bitmapscan = off";
const SETTLE: &str = "SELECT id, effect, state, unblocked FROM postrider._settle($1, $2, $3, $4, $5)";

pub(super) struct Exchange {
    server: Server,
    line: Mutex<Option<Arc<Line>>>,
    opening: tokio::sync::Mutex<()>,
}

/// An open connection and its statements.
pub(super) struct Line {
    pub(super) client: Client,
    pub(super) claim: Statement,
    pub(super) settle: Statement,
}

impl Exchange {
    pub(super) fn new(server: Server) -> Self {
        Self { server, line: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Without waiting when it is open: who asks first is sent first.
    pub(super) async fn line(&self) -> Result<Arc<Line>> {
        if let Some(line) = self.open_line() {
            return Ok(line);
        }
        let _only_one = self.opening.lock().await;
        if let Some(line) = self.open_line() {
            return Ok(line);
        }
        let line = Arc::new(Line::open(&self.server).await?);
        *self.slot() = Some(line.clone());
        Ok(line)
    }

    fn open_line(&self) -> Option<Arc<Line>> {
        self.slot().as_ref().filter(|line| !line.client.is_closed()).cloned()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Line>>> {
        self.line.lock().expect("nobody panics while holding the line")
    }
}

impl Line {
    async fn open(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        client.batch_execute(SESSION).await.map_err(store_error)?;
        let claim = client.prepare(CLAIM).await.map_err(store_error)?;
        let settle = client.prepare(SETTLE).await.map_err(store_error)?;
        Ok(Self { client, claim, settle })
    }
}
