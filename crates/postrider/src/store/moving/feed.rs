//! A stream that is read beside its use: files are read by a thread, databases written by tasks.

use std::io::Read;

use tokio::sync::mpsc;

use super::stream::Batch;
use super::{Header, Incoming, MoveError, Moved};

/// Batches that are read and not yet used.
const AHEAD_MAX: usize = 4;

pub(crate) struct Feed(mpsc::Receiver<Result<Piece, MoveError>>);

enum Piece {
    Header(Box<Header>),
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
    pub(crate) async fn begin(from: impl Read + Send + 'static) -> Result<(Self, Header), MoveError> {
        let (to, pieces) = mpsc::channel(AHEAD_MAX);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = read(from, &to) {
                let _ = to.blocking_send(Err(error));
            }
        });
        let mut feed = Self(pieces);
        match feed.piece().await? {
            Piece::Header(header) => Ok((feed, *header)),
            Piece::Rows(_) | Piece::End(_) => unreachable!("a stream begins with its header"),
        }
    }

    pub(crate) async fn next(&mut self) -> Result<Next, MoveError> {
        match self.piece().await? {
            Piece::Rows(batch) => Ok(Next::Rows(batch)),
            Piece::End(moved) => Ok(Next::End(moved)),
            Piece::Header(_) => unreachable!("a stream begins once"),
        }
    }

    /// Reads the rest: what is wrong with it, if anything is.
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

/// Ends early when nobody listens any more.
fn read(from: impl Read, to: &mpsc::Sender<Result<Piece, MoveError>>) -> Result<(), MoveError> {
    let send = |piece| to.blocking_send(Ok(piece)).is_ok();
    let (mut incoming, header) = Incoming::begin(from)?;
    let mut listening = send(Piece::Header(Box::new(header)));
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
