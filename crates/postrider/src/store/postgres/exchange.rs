//! The connections that claims and settles go over. They have their own for two reasons: what is asked in one
//! breath is sent in one, so that settling and claiming anew cost one round trip; and they commit
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
/// claim, until the server's statistics notice. So no plan may read all of it. An operator's transaction may stay open for
/// hours: what it holds is settled later (`settle_apart.rs`), and everything else goes on.
const SESSION: &str = "SET synchronous_commit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
    SET lock_timeout = '300ms'";
const SETTLE: &str = "SELECT id, effect, state, unblocked, at_priority, at_due, at_id
  FROM postrider._settle($1, $2, $3, $4, $5, $6)";

pub(super) struct Exchange {
    server: Server,
    lines: Mutex<Option<Arc<Lines>>>,
    opening: tokio::sync::Mutex<()>,
}

pub(super) struct Lines {
    /// One after the other.
    pub(super) in_turn: Line,
    /// Of `in_turn`: all settle there.
    pub(super) settle: Statement,
    /// For claims that do not depend on what is being settled, while a backlog lasts.
    pub(super) aside: Line,
}

/// An open connection over which one can claim.
pub(super) struct Line {
    pub(super) client: Client,
    pub(super) claim: Statement,
}

impl Exchange {
    pub(super) fn new(server: Server) -> Self {
        Self { server, lines: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }

    /// Without waiting when they are open: who asks first is sent first.
    pub(super) async fn lines(&self) -> Result<Arc<Lines>> {
        if let Some(lines) = self.open_lines() {
            return Ok(lines);
        }
        let _only_one = self.opening.lock().await;
        if let Some(lines) = self.open_lines() {
            return Ok(lines);
        }
        let (in_turn, aside) = tokio::try_join!(Line::open(&self.server), Line::open(&self.server))?;
        let settle = in_turn.client.prepare(SETTLE).await.map_err(store_error)?;
        let lines = Arc::new(Lines { in_turn, settle, aside });
        *self.slot() = Some(lines.clone());
        Ok(lines)
    }

    fn open_lines(&self) -> Option<Arc<Lines>> {
        self.slot().as_ref().filter(|lines| lines.are_open()).cloned()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Lines>>> {
        self.lines.lock().expect("nobody panics while holding the lines")
    }
}

impl Lines {
    fn are_open(&self) -> bool {
        !self.in_turn.client.is_closed() && !self.aside.client.is_closed()
    }
}

impl Line {
    async fn open(server: &Server) -> Result<Self> {
        let client = server.client().await?;
        client.batch_execute(SESSION).await.map_err(store_error)?;
        let claim = client.prepare(CLAIM).await.map_err(store_error)?;
        Ok(Self { client, claim })
    }
}
