//! The first words on a connection: who we are, what both sides allow, which virtual host.

use std::time::Duration;

use amq_protocol::frame::AMQPFrame;
use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::connection::{AMQPMethod, Open, StartOk, Tune, TuneOk};
use amq_protocol::types::{AMQPValue, FieldTable, LongString, ShortString};

use super::frames::{FrameReader, FrameWriter, split};
use crate::net::Stream;

const MECHANISM: &str = "PLAIN";
/// What brokers usually suggest. A larger frame saves nothing worth its memory.
const FRAME_BYTES_MAX: u32 = 128 << 10;
/// The least that a broker has to take.
const FRAME_BYTES_MIN: u32 = 4096;
/// RabbitMQ's default. A node has fewer attempts in flight unless it is set up for more.
const CHANNELS_MAX: u16 = 2047;
/// The shared channel and a lane.
const CHANNELS_MIN: u16 = 2;

pub(super) struct AmqpLogin {
    pub(super) vhost: ShortString,
    pub(super) username: String,
    pub(super) password: String,
    /// Seconds.
    pub(super) heartbeat: u16,
}

pub(super) struct SignedIn {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    pub(super) channels_max: u16,
    pub(super) heartbeat: Duration,
}

/// Or why the broker did not let us in.
pub(super) async fn sign_in(stream: Stream, login: &AmqpLogin) -> Result<SignedIn, String> {
    let (mut reader, mut writer) = split(stream, FRAME_BYTES_MAX as usize);
    writer.protocol_header();
    writer.flush().await?;
    let AMQPMethod::Start(start) = next(&mut reader).await? else { return Err(unexpected()) };
    let offered = start.mechanisms.to_string();
    if !offered.split(' ').any(|mechanism| mechanism == MECHANISM) {
        return Err(format!("it takes no passwords (PLAIN), only {offered}"));
    }
    say(&mut writer, AMQPMethod::StartOk(introduction(login))).await?;
    let AMQPMethod::Tune(offer) = next(&mut reader).await? else { return Err(unexpected()) };
    let agreed = agreed(&offer, login.heartbeat);
    let heartbeat = Duration::from_secs(agreed.heartbeat.into());
    (reader.frame_max, writer.frame_max) = (agreed.frame_max as usize, agreed.frame_max as usize);
    let channels_max = agreed.channel_max;
    if channels_max < CHANNELS_MIN {
        return Err(format!(
            "it allows {channels_max} channels to a connection, and {CHANNELS_MIN} are needed"
        ));
    }
    say(&mut writer, AMQPMethod::TuneOk(agreed)).await?;
    say(&mut writer, AMQPMethod::Open(Open { virtual_host: login.vhost.clone() })).await?;
    let AMQPMethod::OpenOk(_) = next(&mut reader).await? else { return Err(unexpected()) };
    Ok(SignedIn { reader, writer, channels_max, heartbeat })
}

async fn say(writer: &mut FrameWriter, method: AMQPMethod) -> Result<(), String> {
    writer.method(0, AMQPClass::Connection(method));
    writer.flush().await
}

async fn next(reader: &mut FrameReader) -> Result<AMQPMethod, String> {
    match reader.next().await? {
        AMQPFrame::Method(0, AMQPClass::Connection(AMQPMethod::Close(close))) => {
            Err(format!("{} {}", close.reply_code, close.reply_text))
        }
        AMQPFrame::Method(0, AMQPClass::Connection(method)) => Ok(method),
        _ => Err(unexpected()),
    }
}

fn unexpected() -> String {
    "it did not answer as AMQP 0-9-1 says".to_owned()
}

fn introduction(login: &AmqpLogin) -> StartOk {
    let mut capabilities = FieldTable::default();
    // With the last one a broker says why it refuses a password, instead of closing the connection.
    for name in ["publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"] {
        capabilities.insert(name.into(), AMQPValue::Boolean(true));
    }
    let mut properties = FieldTable::default();
    for (name, text) in [("product", "Postrider"), ("version", env!("CARGO_PKG_VERSION"))] {
        properties.insert(name.into(), AMQPValue::LongString(LongString::from(text)));
    }
    properties.insert("capabilities".into(), AMQPValue::FieldTable(capabilities));
    StartOk {
        client_properties: properties,
        mechanism: MECHANISM.into(),
        response: LongString::from(format!("\0{}\0{}", login.username, login.password)),
        locale: "en_US".into(),
    }
}

/// The lower one of what both sides want. The broker's 0 is "no limit".
fn agreed(offer: &Tune, heartbeat: u16) -> TuneOk {
    let lower = |theirs: u16, ours: u16| if theirs == 0 { ours } else { theirs.min(ours) };
    let frame_max = if offer.frame_max == 0 { FRAME_BYTES_MAX } else { offer.frame_max };
    TuneOk {
        channel_max: lower(offer.channel_max, CHANNELS_MAX),
        frame_max: frame_max.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX),
        heartbeat: lower(offer.heartbeat, heartbeat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(channel_max: u16, frame_max: u32, heartbeat: u16) -> TuneOk {
        agreed(&Tune { channel_max, frame_max, heartbeat }, 60)
    }

    #[test]
    fn the_lower_limit_counts_and_0_is_no_limit() {
        let no_limits = TuneOk { channel_max: CHANNELS_MAX, frame_max: FRAME_BYTES_MAX, heartbeat: 60 };
        assert_eq!(offer(0, 0, 0), no_limits);
        assert_eq!(offer(u16::MAX, u32::MAX, 580), no_limits);
        assert_eq!(offer(10, 8192, 5), TuneOk { channel_max: 10, frame_max: 8192, heartbeat: 5 });
    }
}
