//! What people ask of a store that is full: lists, filters, single messages, figures; all over a node's API.

use std::time::Instant;

use http_body_util::BodyExt;
use serde_json::Value;

use super::lab::Lab;
use super::node::BenchNode;
use super::report::{BenchTarget, ReportRow, median};
use crate::failure::CommandError;
use crate::remote::{Remote, RemoteArgs};

mod filling;
mod questions;
mod retiring;

use questions::{Group, Question};

/// However much the store holds.
const ANSWERED_WITHIN_MS: f64 = 50.0;
/// How often each is asked; the first time counts, too.
const TIMES: usize = 7;

pub(super) async fn run(lab: &mut Lab) -> Result<Vec<ReportRow>, CommandError> {
    let store = lab.new_store().await?;
    let filled = filling::fill(lab, &store).await?;
    let node = BenchNode::start(&store).await?;
    let client = Remote::new(RemoteArgs::of_node(&node.authority))?;
    let mut rows = Vec::new();
    for group in questions::about(&filled, &client).await? {
        lab.say(group.name);
        rows.push(row(lab, &group, ask_all(&client, &group).await?));
    }
    node.stop().await;
    lab.discard(store).await?;
    Ok(rows)
}

struct Answered<'a> {
    question: &'a Question,
    milliseconds: Vec<f64>,
}

impl Answered<'_> {
    fn slowest(&self) -> f64 {
        self.milliseconds.iter().copied().fold(0.0, f64::max)
    }
}

async fn ask_all<'a>(client: &Remote, group: &'a Group) -> Result<Vec<Answered<'a>>, CommandError> {
    let mut answered: Vec<Answered<'_>> =
        group.questions.iter().map(|question| Answered { question, milliseconds: Vec::new() }).collect();
    // Not the same one several times over: what the last answer warmed up would be measured.
    for _ in 0..TIMES {
        for one in &mut answered {
            let began = Instant::now();
            ask(client, one.question).await?;
            one.milliseconds.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(answered)
}

/// The whole answer.
async fn ask(client: &Remote, question: &Question) -> Result<Vec<u8>, CommandError> {
    let query: Vec<(&str, &str)> =
        question.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let body = client.get(&question.path, &query).await?;
    let body =
        body.collect().await.map_err(|error| CommandError::failed(format!("half an answer: {error}")))?;
    Ok(body.to_bytes().to_vec())
}

async fn ask_json(client: &Remote, question: &Question) -> Result<Value, CommandError> {
    let answer = ask(client, question).await?;
    serde_json::from_slice(&answer).map_err(|error| CommandError::failed(format!("{question}: {error}")))
}

/// The worst answer to any of them is what counts.
fn row(lab: &Lab, group: &Group, answered: Vec<Answered<'_>>) -> ReportRow {
    let every: Vec<f64> = answered.iter().flat_map(|one| one.milliseconds.iter().copied()).collect();
    let worst = answered.iter().max_by(|a, b| a.slowest().total_cmp(&b.slowest()));
    let slowest = worst.map(|one| format!("{} (median {:.1})", one.question, median(&one.milliseconds)));
    ReportRow {
        name: group.name,
        measured: worst.map_or(0.0, Answered::slowest),
        unit: "ms",
        yardstick: None,
        target: BenchTarget::Below(ANSWERED_WITHIN_MS),
        note: format!(
            "the worst of {}, median {:.1}; slowest: {}; {} queued, as many archived",
            every.len(),
            median(&every),
            slowest.unwrap_or_default(),
            lab.scale.deep_backlog,
        ),
    }
}
