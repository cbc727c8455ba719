//! One connection: a client that hands messages over, and the task that owns the socket.

use std::{io, iter};

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{mpsc, oneshot};

use super::answer::NatsAnswer;
use super::exchange::{NatsExchange, NatsMessage, NatsOrder};
use crate::net::{Stream, short};

/// Messages that wait to be written. With fewer than a node has attempts in flight, senders would wait in turns.
const ORDERS_MAX: usize = 1024;
const READ_BYTES: usize = 16 << 10;

pub(super) struct NatsClient(mpsc::Sender<NatsOrder>);

impl NatsClient {
    /// None if the connection ended before the answer.
    pub(super) async fn publish(&self, message: NatsMessage) -> Option<NatsAnswer> {
        let (answer, answered) = oneshot::channel();
        self.0.send(NatsOrder { message, answer }).await.ok()?;
        answered.await.ok()
    }
}

/// The end of it, with all that was not yet written, is the end of the future.
pub(super) struct NatsConnection {
    stream: Stream,
    exchange: NatsExchange,
    orders: mpsc::Receiver<NatsOrder>,
}

impl NatsConnection {
    pub(super) fn new(stream: Stream, exchange: NatsExchange) -> (NatsClient, Self) {
        let (sender, orders) = mpsc::channel(ORDERS_MAX);
        (NatsClient(sender), Self { stream, exchange, orders })
    }

    /// Until it is lost; says why.
    pub(super) async fn run(self) -> String {
        let Self { stream, mut exchange, mut orders } = self;
        let (mut reader, mut writer) = tokio::io::split(stream);
        let mut is_flushed = true;
        loop {
            exchange.incoming.reserve(READ_BYTES);
            let has_room = exchange.has_room();
            let went_on = tokio::select! {
                read = reader.read_buf(&mut exchange.incoming) => match read {
                    Ok(0) => Err("the server closed it".to_owned()),
                    Ok(_) => exchange.hear(),
                    Err(error) => Err(short(&error)),
                },
                written = write(&mut writer, &mut exchange.outgoing), if !is_flushed => {
                    written.map(|flushed| is_flushed = flushed).map_err(|error| short(&error))
                }
                taken = orders.recv(), if has_room => match taken {
                    None => Err("nobody needs it any more".to_owned()),
                    Some(first) => {
                        let more = iter::from_fn(|| orders.try_recv().ok());
                        exchange.send(iter::once(first).chain(more));
                        Ok(())
                    }
                },
            };
            if let Err(why) = went_on {
                return why;
            }
            is_flushed &= exchange.outgoing.is_empty();
        }
    }
}

/// Writes a part, or makes sure that all parts are on their way; true when nothing is left to do.
async fn write(writer: &mut (impl AsyncWrite + Unpin), outgoing: &mut BytesMut) -> io::Result<bool> {
    if !outgoing.has_remaining() {
        writer.flush().await?;
        return Ok(true);
    }
    match writer.write_buf(outgoing).await? {
        0 => Err(io::ErrorKind::WriteZero.into()),
        _ => Ok(false),
    }
}
