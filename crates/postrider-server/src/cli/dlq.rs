//! `postrider dlq …`: look at dead letters, put them back, discard them.

use clap::{Args, Subcommand};
use jiff::Timestamp;
use postrider::store::{DeadLetter, DlqFilter, DlqSummary, ListedDeadLetter, Redrive, Sweep, SweepAction};
use postrider::{Operate, StoreError};
use serde_json::json;

use super::filter::FilterArgs;
use super::progress::{WorkProgress, plural};
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::send_values;
use crate::view;

pub(super) const HELP: &str = "\
Examples:
  postrider dlq summary                                        how many each endpoint has
  postrider dlq list --endpoint shop --error 'answered 400'    what went wrong
  postrider dlq show 7                                         one of them, with its payload and errors
  postrider dlq redrive 7                                      try it again
  postrider dlq redrive --endpoint shop --from -2h             all that died in the last two hours
  postrider dlq discard --event-type orders.test               give them up

A redrive takes the letters that are dead when it begins, in the order in which they were sent; those
that die again meanwhile stay. Both can be interrupted: what is done is done, and asking again does the rest.";

/// How many are shown unless said.
const LIST_DEFAULT: u16 = 100;
const LIST_MAX: i64 = 1000;

#[derive(Subcommand)]
pub(crate) enum DlqCommand {
    /// List dead letters, oldest first
    List(ListDeadLettersArgs),
    /// Show one with its payload and its last errors
    Show {
        /// Of the dead letter, as `dlq list` shows it
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Put dead letters back into the queue, with a fresh budget of attempts
    Redrive(SweepArgs),
    /// Give dead letters up for good; keys that wait for them go on
    Discard(SweepArgs),
    /// How many dead letters each endpoint has
    Summary,
}

#[derive(Args)]
pub(crate) struct ListDeadLettersArgs {
    #[command(flatten)]
    filter: FilterArgs,

    /// failed, redriven or discarded; all of them unless said
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,

    /// Only those after this id: the `next` of the page before
    #[arg(long, value_name = "ID")]
    after: Option<i64>,

    /// At most this many
    #[arg(long, value_name = "N", default_value_t = LIST_DEFAULT, value_parser = clap::value_parser!(u16).range(1..=LIST_MAX))]
    limit: u16,
}

#[derive(Args)]
pub(crate) struct SweepArgs {
    /// These, by their ids
    #[arg(value_name = "ID", value_parser = super::id, conflicts_with_all = ["endpoint", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "from", "until", "all"])]
    ids: Vec<i64>,

    #[command(flatten)]
    filter: FilterArgs,

    /// All there are
    #[arg(long, conflicts_with_all = ["endpoint", "reason", "class", "error", "event_type", "ordering_key", "correlation_id", "from", "until"])]
    all: bool,
}

pub(super) async fn run(
    command: DlqCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = place.open_tool().await?;
    match command {
        DlqCommand::List(arguments) => list(&*store, arguments, output).await,
        DlqCommand::Show { id } => show(&*store, id, place, output).await,
        DlqCommand::Redrive(arguments) => sweep(&*store, SweepAction::Redrive, arguments, output).await,
        DlqCommand::Discard(arguments) => sweep(&*store, SweepAction::Discard, arguments, output).await,
        DlqCommand::Summary => {
            let summary = store.dlq_summary().await?;
            output.document(
                || json!({ "items": summary, "next": null }).to_string(),
                || summarized(&summary, Timestamp::now(), output),
            )
        }
    }
}

async fn list(
    store: &dyn Operate,
    arguments: ListDeadLettersArgs,
    output: Output,
) -> Result<(), CommandError> {
    let now = Timestamp::now();
    let mut filter = arguments.filter.filter(now)?;
    filter.status =
        arguments.status.as_deref().map(|text| send_values::dlq_status("status", text)).transpose()?;
    filter.after = arguments.after;
    // One more than asked for tells whether there is a next page.
    let limit = usize::from(arguments.limit);
    filter.limit = limit + 1;
    let mut letters = store.dlq(filter).await?;
    let more = letters.len() > limit;
    letters.truncate(limit);
    let next = letters.last().filter(|_| more).map(|letter| letter.id);
    output.document(
        || {
            let items: Vec<&ListedDeadLetter> = letters.iter().map(|letter| &letter.listed).collect();
            json!({ "items": items, "next": next }).to_string()
        },
        || listed(&letters, next, now, output),
    )
}

fn listed(letters: &[DeadLetter], next: Option<i64>, now: Timestamp, output: Output) -> String {
    if letters.is_empty() {
        return "no dead letters".to_owned();
    }
    let row = |letter: &DeadLetter| {
        vec![
            letter.id.to_string(),
            letter.message.to_string(),
            letter.endpoint.clone(),
            letter.status.as_str().to_owned(),
            letter.reason.clone(),
            view::age(letter.died_at, now),
            letter.attempt_count.to_string(),
            letter.last_error.clone().unwrap_or_default(),
        ]
    };
    let header = ["id", "message", "endpoint", "status", "reason", "died", "attempts", "last error"];
    let table = output.table(&header, letters.iter().map(row).collect());
    match next {
        Some(next) => format!("{table}\nthere are more: --after {next}"),
        None => table,
    }
}

async fn show(store: &dyn Operate, id: i64, place: &StoreOrNode, output: Output) -> Result<(), CommandError> {
    let filter = DlqFilter { id: Some(id), limit: 1, ..DlqFilter::default() };
    let unknown = || StoreError::Unknown { what: "dead letter", name: id.to_string() };
    let letter = store.dlq(filter).await?.pop().ok_or_else(unknown)?;
    let payload = || view::payload_text(letter.payload.as_ref()).unwrap_or_else(|| place.no_payload());
    output.document(|| view::dead_letter(&letter), || shown(&letter, payload()))
}

fn shown(letter: &DeadLetter, payload: String) -> String {
    let mut lines = vec![format!("dead letter {} is {}", letter.id, letter.status.as_str())];
    let mut put = |name: &str, value: Option<String>| {
        lines.extend(value.map(|value| format!("  {name:<16}{value}")));
    };
    put("message", Some(letter.message.to_string()));
    put("endpoint", Some(letter.endpoint.clone()));
    put("reason", Some(letter.reason.clone()));
    put("died at", Some(letter.died_at.to_string()));
    put("created at", Some(letter.created_at.to_string()));
    put("scheduled at", letter.scheduled_at.map(|at| at.to_string()));
    put("expires at", letter.expires_at.map(|at| at.to_string()));
    put("attempts", Some(letter.attempt_count.to_string()));
    put("priority", (letter.priority > 0).then(|| letter.priority.to_string()));
    put("event type", letter.event_type.clone());
    put("ordering key", letter.ordering_key.clone());
    put("idempotency key", letter.idempotency_key.clone());
    put("correlation id", letter.correlation_id.map(|id| id.to_string()));
    put("options", (!letter.options.is_empty()).then(|| json!(letter.options).to_string()));
    put("content type", Some(letter.content_type.clone()));
    for (name, value) in &letter.headers {
        put("header", Some(format!("{name}: {value}")));
    }
    put("payload", Some(payload));
    lines.push("  errors".to_owned());
    lines.extend(
        letter.errors.iter().map(|error| format!("    {} at {}: {}", error.attempt, error.at, error.error)),
    );
    lines.join("\n")
}

async fn sweep(
    store: &dyn Operate,
    action: SweepAction,
    arguments: SweepArgs,
    output: Output,
) -> Result<(), CommandError> {
    let SweepArgs { mut ids, filter, all } = arguments;
    let filter = filter.filter(Timestamp::now())?;
    if !ids.is_empty() {
        if action == SweepAction::Redrive {
            // So that none of a key starts before those that died before it are back.
            ids.sort_unstable();
        }
        return by_id(store, action, &ids, output).await;
    }
    if !all && filter == DlqFilter::default() {
        return Err(CommandError::usage(
            "which of them? Give ids, a filter such as --endpoint NAME, or --all",
        ));
    }
    let sweep = all_steps(store, action, &filter, output).await?;
    tell(action, sweep.done, sweep.total, output)
}

async fn all_steps(
    store: &dyn Operate,
    action: SweepAction,
    filter: &DlqFilter,
    output: Output,
) -> Result<Sweep, CommandError> {
    let progress = WorkProgress::new(output);
    let mut sweep = store.sweep(action, filter.clone(), None).await?;
    while let Some(next) = sweep.next {
        progress.show(sweep.done, Some(sweep.total), "");
        let step = store.sweep(action, filter.clone(), Some(next)).await;
        let rest = "run it again to continue with the rest";
        sweep = step.map_err(|error| interrupted(error, action, sweep.done, sweep.total).hint(rest))?;
    }
    Ok(sweep)
}

/// What was done before stays done.
fn interrupted(error: StoreError, action: SweepAction, done: u64, total: u64) -> CommandError {
    let mut failure = CommandError::from(error);
    failure.error = format!("{} of {total} were {}; then: {}", done, done_word(action), failure.error);
    failure
}

async fn by_id(
    store: &dyn Operate,
    action: SweepAction,
    ids: &[i64],
    output: Output,
) -> Result<(), CommandError> {
    let total = ids.len() as u64;
    for (done, id) in (0..).zip(ids) {
        let one = match action {
            SweepAction::Redrive => store.redrive(Redrive::One(*id)).await.map(drop),
            SweepAction::Discard => store.discard(*id).await,
        };
        one.map_err(|error| match done {
            0 => CommandError::from(error),
            _ => interrupted(error, action, done, total),
        })?;
    }
    tell(action, total, total, output)
}

fn tell(action: SweepAction, done: u64, total: u64, output: Output) -> Result<(), CommandError> {
    output.document(
        || json!({ done_word(action): done, "total": total }).to_string(),
        || match (total, action) {
            (0, SweepAction::Redrive) => {
                "no dead letter that can be redriven is selected; `postrider dlq list` shows \
                which there are, and those of dropped endpoints can only be discarded"
                    .to_owned()
            }
            (0, SweepAction::Discard) => {
                "no dead letter is selected; `postrider dlq list` shows which there are".to_owned()
            }
            _ => format!("{} {}", plural(done, "dead letter"), done_word(action)),
        },
    )
}

fn done_word(action: SweepAction) -> &'static str {
    match action {
        SweepAction::Redrive => "redriven",
        SweepAction::Discard => "discarded",
    }
}

fn summarized(summary: &[DlqSummary], now: Timestamp, output: Output) -> String {
    if summary.is_empty() {
        return "no dead letters".to_owned();
    }
    let age = |at: Option<Timestamp>| at.map_or("-".to_owned(), |at| view::age(at, now));
    let row = |of: &DlqSummary| {
        let reasons: Vec<String> =
            of.reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
        vec![
            of.endpoint.clone(),
            of.failed.to_string(),
            of.redriven.to_string(),
            of.discarded.to_string(),
            age(of.oldest_failed),
            age(of.newest_failed),
            if reasons.is_empty() { "-".to_owned() } else { reasons.join(", ") },
        ]
    };
    let header = ["endpoint", "failed", "redriven", "discarded", "oldest failed", "newest failed", "reasons"];
    output.table(&header, summary.iter().map(row).collect())
}
