//! The first words on a connection: who we are, what both sides allow, which virtual host.

use std::time::Duration;

use bytes::BufMut as _;

use super::frames::{FrameReader, FrameWriter, split};
use super::incoming::{AmqpLimits, BrokerFrame, unexpected};
use super::wire::{self, WireFields};
use crate::net::Stream;
use crate::verdict::Failure;

const MECHANISM: &str = "PLAIN";
/// What brokers usually suggest. A larger frame saves nothing worth its memory.
const FRAME_BYTES_MAX: u32 = 128 << 10;
/// The least that a broker has to take.
const FRAME_BYTES_MIN: u32 = 4096;
/// RabbitMQ's default. A node has fewer attempts in flight unless it is set up for more.
const CHANNELS_MAX: u16 = 2047;
/// The shared channel and a lane.
const CHANNELS_MIN: u16 = 2;

/// What this node says of itself.
pub(super) struct AmqpLogin {
    start_ok: WireFields,
    open: WireFields,
    /// Seconds.
    heartbeat: u16,
}

pub(super) struct SignedIn {
    pub(super) reader: FrameReader,
    pub(super) writer: FrameWriter,
    pub(super) channels_max: u16,
    pub(super) heartbeat: Duration,
}

impl AmqpLogin {
    pub(super) fn new(vhost: &str, username: &str, password: &str, heartbeat: u16) -> Result<Self, Failure> {
        let mut start_ok = WireFields::default();
        start_ok.long(&client_properties()?.0);
        start_ok.short("mechanism", MECHANISM)?;
        start_ok.long(format!("\0{username}\0{password}").as_bytes());
        start_ok.short("locale", "en_US")?;
        let mut open = WireFields::default();
        open.short("config.vhost", vhost)?;
        open.0.put_slice(&[0, 0]);
        Ok(Self { start_ok, open, heartbeat })
    }
}

fn client_properties() -> Result<WireFields, Failure> {
    let mut capabilities = WireFields::default();
    // With the last one a broker says why it refuses a password, instead of closing the connection.
    for name in ["publisher_confirms", "basic.nack", "connection.blocked", "authentication_failure_close"] {
        capabilities.short("capability", name)?;
        capabilities.0.put_slice(b"t\x01");
    }
    let mut properties = WireFields::default();
    properties.header("product", "Postrider")?;
    properties.header("version", env!("CARGO_PKG_VERSION"))?;
    properties.short("property", "capabilities")?;
    properties.0.put_u8(b'F');
    properties.long(&capabilities.0);
    Ok(properties)
}

/// Or why the broker did not let us in.
pub(super) async fn sign_in(stream: Stream, login: &AmqpLogin) -> Result<SignedIn, String> {
    let (mut reader, mut writer) = split(stream, FRAME_BYTES_MAX as usize);
    writer.protocol_header();
    writer.flush().await?;
    let BrokerFrame::Start { mechanisms } = next(&mut reader).await? else { return Err(unexpected()) };
    if !mechanisms.split(' ').any(|mechanism| mechanism == MECHANISM) {
        return Err(format!("it takes no passwords (PLAIN), only {mechanisms}"));
    }
    say(&mut writer, wire::CONNECTION_START_OK, &login.start_ok).await?;
    let BrokerFrame::Tune(offer) = next(&mut reader).await? else { return Err(unexpected()) };
    let agreed = agreed(offer, login.heartbeat);
    (reader.frame_max, writer.frame_max) = (agreed.frame_max as usize, agreed.frame_max as usize);
    let channels_max = agreed.channel_max;
    if channels_max < CHANNELS_MIN {
        return Err(format!(
            "it allows {channels_max} channels to a connection, and {CHANNELS_MIN} are needed"
        ));
    }
    say(&mut writer, wire::CONNECTION_TUNE_OK, &tune_ok(agreed)).await?;
    say(&mut writer, wire::CONNECTION_OPEN, &login.open).await?;
    let BrokerFrame::Opened = next(&mut reader).await? else { return Err(unexpected()) };
    Ok(SignedIn { reader, writer, channels_max, heartbeat: Duration::from_secs(agreed.heartbeat.into()) })
}

async fn say(writer: &mut FrameWriter, method: (u16, u16), arguments: &WireFields) -> Result<(), String> {
    writer.method(0, method, &arguments.0);
    writer.flush().await
}

async fn next(reader: &mut FrameReader) -> Result<BrokerFrame, String> {
    match reader.next().await? {
        BrokerFrame::Close(why) => Err(why.to_string()),
        frame => Ok(frame),
    }
}

fn tune_ok(agreed: AmqpLimits) -> WireFields {
    let mut arguments = WireFields::default();
    arguments.0.put_u16(agreed.channel_max);
    arguments.0.put_u32(agreed.frame_max);
    arguments.0.put_u16(agreed.heartbeat);
    arguments
}

/// The lower one of what both sides want. The broker's 0 is "no limit".
fn agreed(offer: AmqpLimits, heartbeat: u16) -> AmqpLimits {
    let lower = |theirs: u16, ours: u16| if theirs == 0 { ours } else { theirs.min(ours) };
    let frame_max = if offer.frame_max == 0 { FRAME_BYTES_MAX } else { offer.frame_max };
    AmqpLimits {
        channel_max: lower(offer.channel_max, CHANNELS_MAX),
        frame_max: frame_max.clamp(FRAME_BYTES_MIN, FRAME_BYTES_MAX),
        heartbeat: lower(offer.heartbeat, heartbeat),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(channel_max: u16, frame_max: u32, heartbeat: u16) -> AmqpLimits {
        agreed(AmqpLimits { channel_max, frame_max, heartbeat }, 60)
    }

    #[test]
    fn the_lower_limit_counts_and_0_is_no_limit() {
        let no_limits = AmqpLimits { channel_max: CHANNELS_MAX, frame_max: FRAME_BYTES_MAX, heartbeat: 60 };
        assert_eq!(offer(0, 0, 0), no_limits);
        assert_eq!(offer(u16::MAX, u32::MAX, 580), no_limits);
        assert_eq!(offer(10, 8192, 5), AmqpLimits { channel_max: 10, frame_max: 8192, heartbeat: 5 });
    }
}
