//! Which dead letters are meant, as people say it.

use jiff::Timestamp;
use postrider::store::{DEAD_REASONS, DlqFilter};

use crate::failure::CommandError;
use crate::send_values;

#[derive(clap::Args)]
pub(crate) struct FilterArgs {
    /// Of this endpoint, as `list` shows it: a dropped one too, and (events) for those of events
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,

    #[arg(long, value_name = "REASON", help = format!("Died for this reason: {}", DEAD_REASONS.join(", ")))]
    reason: Option<String>,

    /// Class of the last error: retryable, permanent or gone
    #[arg(long, value_name = "CLASS")]
    class: Option<String>,

    /// The last error has this text in it
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,

    /// Of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,

    /// Of this ordering key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,

    /// With this correlation id
    #[arg(long, value_name = "UUID")]
    correlation_id: Option<String>,

    /// Died from then on: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,

    /// Died before: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,
}

impl FilterArgs {
    pub(super) fn filter(self, now: Timestamp) -> Result<DlqFilter, CommandError> {
        let time = |field: &str, text: Option<String>| {
            text.map(|text| send_values::timestamp_or_ago(field, &text, now)).transpose()
        };
        let correlation_id = |text: String| send_values::correlation_id("correlation_id", &text);
        Ok(DlqFilter {
            endpoint: self.endpoint,
            reason: self.reason.map(|text| send_values::dead_reason("reason", &text)).transpose()?,
            class: self.class.map(|text| send_values::class("class", &text)).transpose()?,
            error: self.error,
            event_type: self.event_type,
            ordering_key: self.ordering_key,
            correlation_id: self.correlation_id.map(correlation_id).transpose()?,
            from: time("from", self.from)?,
            until: time("until", self.until)?,
            ..DlqFilter::default()
        })
    }
}
