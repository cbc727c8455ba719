//! `postrider replay …`: send finished messages again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use jiff::Timestamp;
use postrider::store::{NewReplay, Replay, ReplayPreview, ReplaySample, ReplaySelection, ReplayState};
use postrider::{MessageId, Operate};
use serde_json::json;

use super::progress::{WorkProgress, plural};
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::{send_values, view};

pub(super) const HELP: &str = "\
Examples:
  postrider replay message 12                                  one message, to its own endpoint
  postrider replay start --endpoint shop --from -2h --dry-run  how many would it be?
  postrider replay start --endpoint shop --from -2h            send them again
  postrider replay start --endpoint shop --status failed --to shop-v2 --rate 50
  postrider replay stop 3                                      and: postrider replay resume 3

Replayed messages are new ones that refer to the old: no idempotency key, no expiry. The running
nodes do the work; on a terminal `start` and `resume` show how far it is, and Ctrl-C only stops showing.";

const SHOW_INTERVAL: Duration = Duration::from_millis(200);
/// A replay that does not move for this long may have no node to move it.
const NO_NODE_AFTER: Duration = Duration::from_secs(5);
/// How many are shown unless said.
const LIST_DEFAULT: u16 = 20;
const LIST_MAX: i64 = 1000;

#[derive(Subcommand)]
pub(crate) enum ReplayCommand {
    /// Send again what a selection says
    Start(StartArgs),
    /// List replays, newest first
    List {
        /// Only those before this id: the `next` of the page before
        #[arg(long, value_name = "ID")]
        before: Option<i64>,
        /// At most this many
        #[arg(long, value_name = "N", default_value_t = LIST_DEFAULT, value_parser = clap::value_parser!(u16).range(1..=LIST_MAX))]
        limit: u16,
    },
    /// Show one and how far it is
    Show {
        /// Of the replay, as `replay list` shows it
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Stop one where it is
    Stop {
        /// Of the replay, as `replay list` shows it
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Let a stopped one go on
    Resume {
        /// Of the replay, as `replay list` shows it
        #[arg(value_parser = super::id)]
        id: i64,
        #[command(flatten)]
        wait: WaitArgs,
    },
    /// Send one finished message again
    Message {
        /// Of the message
        #[arg(value_parser = super::id)]
        id: i64,
        /// To this endpoint instead of its own
        #[arg(long, value_name = "NAME")]
        to: Option<String>,
    },
}

#[derive(Args)]
pub(crate) struct StartArgs {
    /// What was sent to this endpoint
    #[arg(long, value_name = "NAME")]
    endpoint: Option<String>,

    /// Of this event type
    #[arg(long, value_name = "TYPE")]
    event_type: Option<String>,

    /// Of this ordering key
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,

    /// completed, expired, cancelled, or failed, which is what is in the DLQ; all but that unless said
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,

    /// Created from then on: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    from: Option<String>,

    /// Created before: 2030-01-31T08:00:00Z, or -2h for two hours ago
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    until: Option<String>,

    /// Send all of them to this endpoint instead of their own
    #[arg(long, value_name = "NAME")]
    to: Option<String>,

    /// Not faster than this: 50 (a second), 3000/minute or 10/hour
    #[arg(long, value_name = "N")]
    rate: Option<String>,

    /// Only say how many it would be, and show the first
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    wait: WaitArgs,
}

#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Wait until it has ended, as is done on a terminal
    #[arg(long, overrides_with = "no_wait")]
    wait: bool,

    /// Do not wait
    #[arg(long)]
    no_wait: bool,
}

impl WaitArgs {
    fn is_wanted(&self, output: Output) -> bool {
        self.wait || (output.is_live() && !self.no_wait)
    }
}

pub(super) async fn run(
    command: ReplayCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = &*place.open_tool().await?;
    match command {
        ReplayCommand::Start(arguments) => return start(store, arguments, output).await,
        ReplayCommand::List { before, limit } => {
            return list(store, before, usize::from(limit), output).await;
        }
        ReplayCommand::Show { id } => show(&store.replay(id).await?, output)?,
        ReplayCommand::Stop { id } => show(&store.stop_replay(id).await?, output)?,
        ReplayCommand::Resume { id, wait } => {
            let replay = store.resume_replay(id).await?;
            let replay = if wait.is_wanted(output) { watch(store, replay, output).await? } else { replay };
            show(&replay, output)?;
        }
        ReplayCommand::Message { id, to } => {
            let new = store.replay_message(MessageId(id), to.as_deref()).await?;
            output.document(
                || json!({ "id": new, "replay_of": id }).to_string(),
                || format!("message {id} is sent again as message {new}"),
            )?;
        }
    }
    Ok(())
}

async fn start(store: &dyn Operate, arguments: StartArgs, output: Output) -> Result<(), CommandError> {
    let (dry_run, wait) = (arguments.dry_run, arguments.wait.is_wanted(output));
    let replay = arguments.replay(Timestamp::now())?;
    if dry_run {
        let preview = store.preview_replay(replay).await?;
        return output.document(|| json!(preview).to_string(), || previewed(&preview, output));
    }
    let started = store.start_replay(replay).await?;
    let replay = if wait { watch(store, started, output).await? } else { started };
    show(&replay, output)
}

impl StartArgs {
    fn replay(self, now: Timestamp) -> Result<NewReplay, CommandError> {
        let time = |field: &str, text: Option<String>| {
            text.map(|text| send_values::timestamp_or_ago(field, &text, now)).transpose()
        };
        let selection = ReplaySelection {
            endpoint: self.endpoint,
            event_type: self.event_type,
            ordering_key: self.ordering_key,
            status: self.status.map(|text| send_values::replay_status("status", &text)).transpose()?,
            from: time("from", self.from)?,
            until: time("until", self.until)?,
        };
        if selection == ReplaySelection::default() {
            return Err(CommandError::usage(
                "which of them? Select with --endpoint, --status, --from or another; see --help",
            ));
        }
        let rate_limit = self.rate.map(|text| send_values::rate_limit("rate", &text)).transpose()?;
        Ok(NewReplay { selection, to: self.to, rate_limit })
    }
}

/// Until it has ended, or until Ctrl-C: then it continues without being watched.
async fn watch(store: &dyn Operate, mut replay: Replay, output: Output) -> Result<Replay, CommandError> {
    let progress = WorkProgress::new(output);
    let mut moved = (Instant::now(), replay.clone());
    while replay.state == ReplayState::Running {
        let still = moved.0.elapsed() > NO_NODE_AFTER && replay.rate_limit.is_none();
        let note = match &replay.waiting {
            Some(waiting) => format!("- {waiting}"),
            None if still => "- nothing moves: is a node running? `postrider serve` starts one".to_owned(),
            None => String::new(),
        };
        progress.show(replay.done + replay.skipped_count(), replay.total, &note);
        tokio::select! {
            () = tokio::time::sleep(SHOW_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => break,
        }
        replay = store.replay(replay.id).await?;
        if replay != moved.1 {
            moved = (Instant::now(), replay.clone());
        }
    }
    Ok(replay)
}

async fn list(
    store: &dyn Operate,
    before: Option<i64>,
    limit: usize,
    output: Output,
) -> Result<(), CommandError> {
    // One more than asked for tells whether there is a next page.
    let mut replays = store.replays(before, limit + 1).await?;
    let more = replays.len() > limit;
    replays.truncate(limit);
    let next = replays.last().filter(|_| more).map(|replay| replay.id);
    output.document(
        || json!({ "items": replays, "next": next }).to_string(),
        || listed(&replays, next, Timestamp::now(), output),
    )
}

fn listed(replays: &[Replay], next: Option<i64>, now: Timestamp, output: Output) -> String {
    if replays.is_empty() {
        return "no replays yet; `postrider replay start` makes one".to_owned();
    }
    let row = |replay: &Replay| {
        vec![
            replay.id.to_string(),
            replay.state.as_str().to_owned(),
            selected(replay),
            replay.done.to_string(),
            replay.skipped_count().to_string(),
            replay.total.map_or("-".to_owned(), |total| total.to_string()),
            view::age(replay.started_at, now),
            replay.waiting.clone().unwrap_or_default(),
        ]
    };
    let header = ["id", "state", "selection", "done", "skipped", "total", "started", "waits for"];
    let table = output.table(&header, replays.iter().map(row).collect());
    match next {
        Some(next) => format!("{table}\nthere are more: --before {next}"),
        None => table,
    }
}

/// What it is about, in a few words.
fn selected(replay: &Replay) -> String {
    let ReplaySelection { endpoint, event_type, ordering_key, status, from, until } = &replay.selection;
    let words = [
        endpoint.clone(),
        event_type.as_ref().map(|kind| format!("type {kind}")),
        ordering_key.as_ref().map(|key| format!("key {key}")),
        status.map(|status| status.as_str().to_owned()),
        from.map(|at| format!("from {at}")),
        until.map(|at| format!("until {at}")),
        replay.to.as_ref().map(|to| format!("to {to}")),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn show(replay: &Replay, output: Output) -> Result<(), CommandError> {
    output.document(|| json!(replay).to_string(), || shown(replay))
}

fn shown(replay: &Replay) -> String {
    let total = replay.total.map_or("(not counted yet)".to_owned(), |total| total.to_string());
    let mut lines = vec![
        format!("replay {} is {}: {} of {total} sent", replay.id, replay.state.as_str(), replay.done),
        format!("  selected    {}", selected(replay)),
    ];
    if let Some(limit) = replay.rate_limit {
        lines.push(format!("  rate        {}", rate_text(limit)));
    }
    lines.extend(skipped(&replay.skipped).map(|skipped| format!("  skipped     {skipped}")));
    lines.extend(replay.waiting.as_ref().map(|waiting| format!("  waits for   {waiting}")));
    lines.join("\n")
}

fn rate_text(limit: postrider::rate::RateLimit) -> String {
    let interval = json!(limit.interval);
    format!("{} a {}", limit.limit, interval.as_str().unwrap_or_default())
}

fn skipped(skipped: &BTreeMap<String, u64>) -> Option<String> {
    let words: Vec<String> = skipped.iter().map(|(reason, count)| format!("{count} ({reason})")).collect();
    (!words.is_empty()).then(|| words.join(", "))
}

fn previewed(preview: &ReplayPreview, output: Output) -> String {
    let mut lines =
        vec![format!("{} would be sent again; nothing was done", plural(preview.count, "message"))];
    lines.extend(skipped(&preview.skipped).map(|skipped| format!("skipped would be {skipped}")));
    if !preview.sample.is_empty() {
        let row = |sample: &ReplaySample| {
            vec![
                sample.id.to_string(),
                sample.endpoint.clone(),
                sample.status.as_str().to_owned(),
                sample.event_type.clone().unwrap_or_default(),
                sample.ordering_key.clone().unwrap_or_default(),
                sample.created_at.to_string(),
            ]
        };
        let header = ["message", "endpoint", "status", "event type", "ordering key", "created at"];
        lines.push("the first of them:".to_owned());
        lines.push(output.table(&header, preview.sample.iter().map(row).collect()));
    }
    lines.join("\n")
}
