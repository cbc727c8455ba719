//! Logs go to stderr: stdout belongs to what a command was asked for.

use tracing_subscriber::EnvFilter;

use crate::config::LogFormat;
use crate::failure::CommandError;

/// `POSTRIDER_LOG` takes a level or a filter such as `info,postrider=debug`.
const FILTER: &str = "POSTRIDER_LOG";

/// The driver's lines for debugging hold the parameters of every statement: payloads, headers, secrets. They are
/// never written, whatever the filter asks for.
const DRIVER: &str = "tokio_postgres=info";

/// The Kafka client tells of each connection that the node tells of in its own words, and warns of passwords that are
/// not encrypted before they leave this process.
const KAFKA_CLIENT: &str = "krafka=error";

pub(crate) fn start(format: LogFormat, default_filter: &str) -> Result<(), CommandError> {
    let written = std::env::var(FILTER).ok().filter(|text| !text.is_empty());
    let filter = EnvFilter::try_new(written.as_deref().unwrap_or(default_filter))
        .map_err(|error| CommandError::usage(format!("{FILTER}: {error}")))?
        .add_directive(DRIVER.parse().expect("a directive"))
        .add_directive(KAFKA_CLIENT.parse().expect("a directive"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => builder.with_ansi(console::colors_enabled_stderr()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
