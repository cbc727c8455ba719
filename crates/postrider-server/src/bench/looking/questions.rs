//! What is asked: every way to look, with filters that fit many messages, few, or none.

use std::fmt;

use jiff::{SignedDuration, Timestamp};

use super::ask_json;
use super::filling::{self, COMMON_EVENT, Filled, RARE_ENDPOINT, RARE_EVENT};
use crate::failure::CommandError;
use crate::remote::Remote;

pub(super) struct Question {
    pub(super) path: String,
    pub(super) query: Vec<(&'static str, String)>,
}

impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)?;
        for (at, (name, value)) in self.query.iter().enumerate() {
            write!(f, "{}{name}={value}", if at == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

pub(super) struct Group {
    pub(super) name: &'static str,
    pub(super) questions: Vec<Question>,
}

pub(super) async fn about(filled: &Filled, client: &Remote) -> Result<Vec<Group>, CommandError> {
    let (plain, filters) = (messages(&[]), filters());
    let deep = deep_page(client).await?;
    let ids = single_messages(filled, client).await?;
    Ok(vec![
        Group {
            name: "messages without a filter",
            questions: vec![plain, messages(&[("limit", "1000")]), deep],
        },
        Group {
            name: "messages by one filter",
            questions: filters.iter().map(|filter| messages(&[filter_ref(filter)])).collect(),
        },
        Group { name: "messages by two filters", questions: pairs(&filters) },
        Group { name: "dead letters", questions: dead_letters() },
        Group { name: "one message", questions: ids },
        Group {
            name: "status",
            questions: vec![question("/v1/status", &[]), question("/v1/endpoints", &[])],
        },
        Group { name: "metrics", questions: vec![question("/metrics", &[])] },
    ])
}

fn question(path: &str, query: &[(&'static str, &str)]) -> Question {
    let query = query.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Question { path: path.to_owned(), query }
}

fn messages(query: &[(&'static str, &str)]) -> Question {
    question("/v1/messages", query)
}

type Filter = (&'static str, String);

fn filter_ref((name, value): &Filter) -> (&'static str, &str) {
    (name, value)
}

/// Every filter of a list of messages: with what is common, what is rare, and what is not there.
fn filters() -> Vec<Filter> {
    let state = |state: &str| ("state", state.to_owned());
    let day = SignedDuration::from_hours(24);
    let (now, long_ago) = (Timestamp::now(), Timestamp::now() - day * 400);
    let mut filters: Vec<Filter> =
        ["pending", "processing", "completed", "dead", "expired", "cancelled"].map(state).into();
    filters.extend([
        ("endpoint", filling::endpoint(1)),
        ("endpoint", RARE_ENDPOINT.to_owned()),
        ("event_type", COMMON_EVENT.to_owned()),
        ("event_type", RARE_EVENT.to_owned()),
        ("event_type", "order.unknown".to_owned()),
        ("ordering_key", "customer-3".to_owned()),
        ("ordering_key", "nobody".to_owned()),
        ("correlation_id", filling::correlation(10).to_string()),
        ("correlation_id", filling::correlation(1).to_string()),
        ("created_after", (now - day / 24).to_string()),
        ("created_after", (now + day).to_string()),
        ("created_before", (now - day).to_string()),
        ("created_before", long_ago.to_string()),
    ]);
    filters
}

/// All that do not contradict each other by their names.
fn pairs(filters: &[Filter]) -> Vec<Question> {
    let mut pairs = Vec::new();
    for (at, one) in filters.iter().enumerate() {
        for other in filters[at + 1..].iter().filter(|other| other.0 != one.0) {
            pairs.push(messages(&[filter_ref(one), filter_ref(other)]));
        }
    }
    pairs
}

fn dead_letters() -> Vec<Question> {
    let busy = filling::endpoint(1);
    [
        &[][..],
        &[("limit", "1000")],
        &[("endpoint", &busy)],
        &[("endpoint", RARE_ENDPOINT)],
        &[("status", "failed")],
        &[("status", "redriven")],
        &[("event_type", RARE_EVENT)],
        &[("ordering_key", "nobody")],
        &[("error", "nothing like it")],
        &[("reason", "gone")],
        &[("class", "permanent"), ("endpoint", &busy)],
    ]
    .into_iter()
    .map(|query| question("/v1/dlq", query))
    .chain([question("/v1/dlq/summary", &[])])
    .collect()
}

/// Where a list of messages continues after its tenth page of a thousand.
async fn deep_page(client: &Remote) -> Result<Question, CommandError> {
    let mut page = messages(&[("limit", "1000")]);
    for _ in 0..10 {
        let answer = ask_json(client, &page).await?;
        let Some(next) = answer["next"].as_str() else { break };
        page = messages(&[("limit", "1000"), ("cursor", next)]);
    }
    Ok(page)
}

async fn single_messages(filled: &Filled, client: &Remote) -> Result<Vec<Question>, CommandError> {
    let dead = ask_json(client, &question("/v1/dlq", &[("limit", "1")])).await?;
    let dead = dead["items"][0]["message_id"].as_i64().unwrap_or_default();
    let middle = filled.first_queued.0 / 2 + 3;
    let ids = [filled.first_queued.0, filled.last.0, 1, middle, filled.first_queued.0 - 2, dead];
    Ok(ids.iter().map(|id| question(&format!("/v1/messages/{id}"), &[])).collect())
}
