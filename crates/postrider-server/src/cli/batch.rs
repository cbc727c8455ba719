//! `postrider send --batch`: the lines of a file, in transactions of many.

use std::sync::Arc;

use postrider::{Invalid, NewMessage, Operate, StoreError};
use serde_json::json;

use super::lines::{InputLine, InputLines};
use super::progress::{WorkProgress, plural};
use crate::batch::guilty;
use crate::envelope;
use crate::failure::{CommandError, Exit};
use crate::fields::BadDocument;
use crate::output::Output;

/// Few enough that other writers get their turn between two transactions, and many enough that these cost little.
const TRANSACTION_MESSAGES_MAX: usize = 1000;

pub(super) async fn run(
    from: &str,
    skip: u64,
    operate: Arc<dyn Operate>,
    output: Output,
) -> Result<(), CommandError> {
    let limit = operate.settings().await?.max_batch_messages as usize;
    let mut lines = InputLines::of(from)?;
    let progress = WorkProgress::reading(output, lines.total_bytes);
    let mut batch = BatchSend { operate, skip, account: CommittedLines::default() };
    let ended = batch.send_all(&mut lines, limit.min(TRANSACTION_MESSAGES_MAX), &progress).await;
    drop(progress);
    let account = batch.account;
    let mut told = Ok(());
    if ended.is_ok() || output.json || account.lines > 0 {
        told = output.document(|| account.json(), || account.text());
    }
    ended.map_err(|failure| account.tell_how_to_go_on(failure)).and(told)
}

struct BatchSend {
    operate: Arc<dyn Operate>,
    skip: u64,
    account: CommittedLines,
}

/// What is committed.
#[derive(Default)]
struct CommittedLines {
    /// Lines from the beginning of the file, those that were skipped included.
    lines: u64,
    sent: u64,
    duplicates: u64,
}

/// A message and the number of its line.
type Numbered = (u64, NewMessage);

impl BatchSend {
    async fn send_all(
        &mut self,
        lines: &mut InputLines,
        max: usize,
        progress: &WorkProgress,
    ) -> Result<(), CommandError> {
        loop {
            let (came, broken) = tokio::select! {
                next = lines.next(max) => next,
                _ = tokio::signal::ctrl_c() => return Err(CommandError::failed("it was interrupted")),
            };
            self.send(&came).await?;
            if let Some(last) = came.last() {
                self.account.lines = last.number;
                progress.read(last.end, plural(self.account.sent, "message"));
            }
            match broken {
                Some(failure) => return Err(failure),
                None if came.is_empty() => break,
                None => {}
            }
        }
        if self.account.lines < self.skip {
            let there = plural(self.account.lines, "line");
            return Err(CommandError::usage(format!("--skip {}: there are only {there}", self.skip)));
        }
        Ok(())
    }

    /// All that came, or all before the first that is refused.
    async fn send(&mut self, came: &[InputLine]) -> Result<(), CommandError> {
        let mut messages: Vec<Numbered> = Vec::with_capacity(came.len());
        for line in came.iter().filter(|line| line.number > self.skip) {
            if line.text.trim_ascii().is_empty() {
                continue;
            }
            match envelope::addressed(&line.text) {
                Ok(message) => messages.push((line.number, message)),
                Err(bad) => {
                    self.send_parsed(messages).await?;
                    self.account.lines = line.number - 1;
                    return Err(at_line(line.number, bad.into()));
                }
            }
        }
        self.send_parsed(messages).await
    }

    async fn send_parsed(&mut self, messages: Vec<Numbered>) -> Result<(), CommandError> {
        let Some(((first, _), (last, _))) = messages.first().zip(messages.last()) else { return Ok(()) };
        let (first, mut last) = (*first, *last);
        let (numbers, mut messages): (Vec<u64>, Vec<NewMessage>) = messages.into_iter().unzip();
        let mut refused = Ok(());
        // A store need not name the first that it refuses.
        while let Err(error) = self.commit(&messages).await {
            let Some(at) = guilty(&*self.operate, &messages, &error).await else {
                self.account.lines = first - 1;
                return Err(of_lines(first, last, error.into()));
            };
            messages.truncate(at);
            last = numbers[at] - 1;
            self.account.lines = last;
            refused = Err(at_line(numbers[at], error.into()));
        }
        refused
    }

    async fn commit(&mut self, messages: &[NewMessage]) -> Result<(), StoreError> {
        if messages.is_empty() {
            return Ok(());
        }
        let sent = self.operate.send_batch(messages.to_vec()).await?;
        let duplicates = sent.iter().filter(|sent| sent.duplicate).count() as u64;
        self.account.duplicates += duplicates;
        self.account.sent += sent.len() as u64 - duplicates;
        Ok(())
    }
}

impl CommittedLines {
    fn tell_how_to_go_on(&self, failure: CommandError) -> CommandError {
        if self.lines == 0 || failure.exit == Exit::Usage {
            return failure;
        }
        let go_on = format!("--skip {} continues where this ended", self.lines);
        let hint = failure.hint.as_ref().map_or(go_on.clone(), |hint| format!("{hint}; {go_on}"));
        failure.hint(hint)
    }

    fn json(&self) -> String {
        json!({ "lines": self.lines, "sent": self.sent, "duplicates": self.duplicates }).to_string()
    }

    fn text(&self) -> String {
        let sent = plural(self.sent, "message");
        let are = if self.sent == 1 { "is" } else { "are" };
        match self.duplicates {
            0 => format!("{sent} {are} queued"),
            duplicates => {
                format!("{sent} {are} queued; of {duplicates} the idempotency key was there already")
            }
        }
    }
}

impl From<BadDocument> for CommandError {
    fn from(bad: BadDocument) -> Self {
        match bad {
            BadDocument::Json(error) => {
                // It is one line, whose number is said already.
                let error = error.to_string().replace(" at line 1 column ", " at column ");
                Invalid::new("message", format!("is not the JSON that is asked for: {error}")).into()
            }
            BadDocument::Value(invalid) => invalid.into(),
        }
    }
}

fn at_line(number: u64, mut failure: CommandError) -> CommandError {
    failure.error = format!("line {number}: {}", failure.error);
    failure
}

/// When the line is not known.
fn of_lines(first: u64, last: u64, failure: CommandError) -> CommandError {
    if first == last {
        return at_line(first, failure);
    }
    CommandError {
        error: format!("lines {first} to {last}, of which none is sent: {}", failure.error),
        ..failure
    }
}
