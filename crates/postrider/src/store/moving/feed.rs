//! A stream that one thread reads while a task writes it into the database.

use std::io::Read;

use tokio::sync::mpsc;

use super::stream::Batch;
use super::{Incoming, MoveError, Moved, StreamHeader};

/// Batches read ahead.
const AHEAD_MAX: usize = 4;

pub(crate) struct Feed(mpsc::Receiver<Result<Piece, MoveError>>);

enum Piece {
    StreamHeader(Box<StreamHeader>),
    Rows(Batch),
    End(Moved),
}

/// What comes after the header.
pub(crate) enum Next {
    Rows(Batch),
    /// The stream was whole.
    End(Moved),
}

impl Feed {
    pub(crate) async fn begin(from: impl Read + Send + 'static) -> Result<(Self, StreamHeader), MoveError> {
        let (to, pieces) = mpsc::channel(AHEAD_MAX);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = read(from, &to) {
                let _ = to.blocking_send(Err(error));
            }
        });
        let mut feed = Self(pieces);
        match feed.piece().await? {
            Piece::StreamHeader(header) => Ok((feed, *header)),
            Piece::Rows(_) | Piece::End(_) => unreachable!("a stream begins with its header"),
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Next, MoveError> {
        match self.piece().await? {
            Piece::Rows(batch) => Ok(Next::Rows(batch)),
            Piece::End(moved) => Ok(Next::End(moved)),
            Piece::StreamHeader(_) => unreachable!("a stream begins once"),
        }
    }

    /// Reads the rest and returns its error, if any.
    pub(crate) async fn damage(mut self) -> Option<MoveError> {
        loop {
            match self.0.recv().await {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Some(error),
                None => return None,
            }
        }
    }

    async fn piece(&mut self) -> Result<Piece, MoveError> {
        self.0
            .recv()
            .await
            .unwrap_or_else(|| Err(MoveError::Damaged("it was not read to its end".to_owned())))
    }
}

/// Ends early when the receiver was dropped.
fn read(from: impl Read, to: &mpsc::Sender<Result<Piece, MoveError>>) -> Result<(), MoveError> {
    let send = |piece| to.blocking_send(Ok(piece)).is_ok();
    let (mut incoming, header) = Incoming::begin(from)?;
    let mut listening = send(Piece::StreamHeader(Box::new(header)));
    while listening {
        match incoming.next()? {
            Some(batch) => listening = send(Piece::Rows(batch)),
            None => {
                send(Piece::End(incoming.moved()));
                return Ok(());
            }
        }
    }
    Ok(())
}
