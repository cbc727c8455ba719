//! What is moved: every table with its columns, in the order of the stream.

use super::Rows;

pub(crate) struct Section {
    /// The name of its lines.
    pub(crate) name: &'static str,
    pub(crate) columns: &'static [(&'static str, ColumnKind)],
    /// Where its rows are counted.
    pub(super) count: fn(&mut Rows) -> &mut u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Whole,
    Flag,
    Text,
    Json,
    /// Text for people: a character that a store cannot keep is replaced, not refused.
    Note,
    /// The same within JSON.
    Notes,
    Bytes,
    Time,
    Uuid,
    /// A list of ids.
    Ids,
}

use ColumnKind::{Bytes, Flag, Ids, Json, Note, Notes, Text, Time, Uuid, Whole};

pub(crate) const SECTIONS: &[Section] = &[
    Section {
        name: "setting",
        columns: &[("name", Text), ("value", Text)],
        count: |rows| &mut rows.settings,
    },
    Section {
        name: "endpoint",
        columns: &[
            ("id", Whole),
            ("name", Text),
            ("protocol", Text),
            ("config", Json),
            ("retry_policy", Json),
            ("options", Json),
            ("disabled_by", Text),
            ("paused", Flag),
            ("circuit", Text),
            ("circuit_epoch", Whole),
            ("circuit_until", Time),
            ("circuit_probe_node", Whole),
            ("held_until", Time),
            ("rate_position", Time),
            ("revision", Whole),
            ("created_at", Time),
            ("dropped_at", Time),
        ],
        count: |rows| &mut rows.endpoints,
    },
    // JSON of rules is text here, so that no digit of a number is lost. Stored events are not moved: closing the store fans
    // them out. Totals are not moved: they restart at 0.
    Section {
        name: "event_type",
        columns: &[("name", Text), ("description", Text), ("schema", Text), ("created_at", Time)],
        count: |rows| &mut rows.event_types,
    },
    Section {
        name: "subscription",
        columns: &[
            ("id", Whole),
            ("pattern", Text),
            ("endpoint_id", Whole),
            ("filter", Text),
            ("template", Text),
            ("enabled", Flag),
            ("created_at", Time),
        ],
        count: |rows| &mut rows.subscriptions,
    },
    Section {
        name: "node",
        columns: &[
            ("id", Whole),
            ("name", Note),
            ("state", Text),
            ("joined_at", Time),
            ("heartbeat_at", Time),
            ("lease_until", Time),
        ],
        count: |rows| &mut rows.nodes,
    },
    // `place`: 0 ready, 1 behind its ordering key, 3 on probation. A claimed message has the place that it would
    // have without its claim, and its claim's attempt is not among `attempts`: the claim counts it.
    Section {
        name: "message",
        columns: &[
            ("id", Whole),
            ("endpoint_id", Whole),
            ("place", Whole),
            ("priority", Whole),
            ("due_at", Time),
            ("attempts", Whole),
            ("attempts_before", Whole),
            ("losses", Whole),
            ("delivered_late", Flag),
            ("key_scope", Whole),
            ("key_position", Whole),
            ("ordering_key", Text),
            ("created_at", Time),
            ("scheduled_at", Time),
            ("expires_at", Time),
            ("idempotency_key", Text),
            ("correlation_id", Uuid),
            ("event_type", Text),
            ("last_error", Note),
            ("content_type", Text),
            ("headers", Json),
            ("options", Json),
            ("payload", Bytes),
        ],
        count: |rows| &mut rows.messages,
    },
    // Their nodes are gone, so the importing store treats each as a lost claim.
    Section {
        name: "claim",
        columns: &[("node_id", Whole), ("batch", Whole), ("started_at", Time), ("alone", Flag), ("ids", Ids)],
        count: |rows| &mut rows.claims,
    },
    Section {
        name: "reservation",
        columns: &[
            ("endpoint_id", Whole),
            ("idempotency_key", Text),
            ("message_id", Whole),
            ("digest", Bytes),
            ("until", Time),
        ],
        count: |rows| &mut rows.reservations,
    },
    Section {
        name: "dead_letter",
        columns: &[
            ("id", Whole),
            ("message_id", Whole),
            ("endpoint_id", Whole),
            ("status", Text),
            ("reason", Text),
            ("died_at", Time),
            ("errors", Notes),
            ("holds_key", Flag),
            ("bytes", Whole),
            ("priority", Whole),
            ("attempts", Whole),
            ("losses", Whole),
            ("key_scope", Whole),
            ("ordering_key", Text),
            ("created_at", Time),
            ("scheduled_at", Time),
            ("expires_at", Time),
            ("idempotency_key", Text),
            ("correlation_id", Uuid),
            ("event_type", Text),
            ("last_error", Note),
            ("content_type", Text),
            ("headers", Json),
            ("options", Json),
            ("payload", Bytes),
        ],
        count: |rows| &mut rows.dead_letters,
    },
    Section {
        name: "archived",
        columns: &[
            ("id", Whole),
            ("endpoint_id", Whole),
            ("status", Text),
            ("finished_at", Time),
            ("created_at", Time),
            ("priority", Whole),
            ("attempts", Whole),
            ("scheduled_at", Time),
            ("expires_at", Time),
            ("correlation_id", Uuid),
            ("content_type", Text),
            ("ordering_key", Text),
            ("idempotency_key", Text),
            ("event_type", Text),
            ("last_error", Note),
            ("headers", Json),
            ("options", Json),
            ("payload", Bytes),
        ],
        count: |rows| &mut rows.archived,
    },
    Section {
        name: "attempt",
        columns: &[
            ("message_id", Whole),
            ("number", Whole),
            ("node_id", Whole),
            ("started_at", Time),
            // In microseconds.
            ("duration", Whole),
            ("outcome", Text),
            ("class", Text),
            ("error", Note),
            ("response_status", Whole),
            ("response_body", Bytes),
        ],
        count: |rows| &mut rows.attempts,
    },
    Section {
        name: "replay",
        columns: &[
            ("id", Whole),
            ("state", Text),
            ("endpoint_id", Whole),
            ("event_type", Text),
            ("ordering_key", Text),
            ("status", Text),
            ("created_from", Time),
            ("created_until", Time),
            ("to_endpoint_id", Whole),
            ("rate_limit", Json),
            ("rate_position", Time),
            ("last_id", Whole),
            ("counted", Whole),
            ("counted_to", Whole),
            ("position", Whole),
            ("done", Whole),
            ("skipped", Json),
            ("waiting", Note),
            ("next_at", Time),
            ("started_at", Time),
            ("ended_at", Time),
        ],
        count: |rows| &mut rows.replays,
    },
    // Which message was made from which.
    Section {
        name: "replayed",
        columns: &[("id", Whole), ("original_id", Whole), ("at", Time)],
        count: |rows| &mut rows.replayed,
    },
    Section {
        name: "event",
        columns: &[("id", Whole), ("at", Time), ("kind", Text), ("subject", Note), ("detail", Notes)],
        count: |rows| &mut rows.events,
    },
    Section {
        name: "token",
        columns: &[
            ("prefix", Text),
            ("name", Text),
            ("scope", Text),
            ("digest", Bytes),
            ("created_at", Time),
        ],
        count: |rows| &mut rows.tokens,
    },
];

impl Section {
    pub(super) fn by_name(name: &str) -> Option<&'static Self> {
        SECTIONS.iter().find(|section| section.name == name)
    }

    /// For a SELECT or a COPY of all of it.
    pub(crate) fn column_list(&self) -> String {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        names.join(", ")
    }
}
