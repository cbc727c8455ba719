//! The account: what became of every message, told by the store and by the receivers, and compared.

use std::collections::{BTreeMap, HashMap};

use console::style;
use postrider::store::Story;
use postrider::{Operate, State};
use serde_json::{Value, json};

use super::ATTEMPTS_MAX;
use super::ledger::Ledger;
use super::load::SentMessage;
use super::plan::{DemoPlan, PlannedKind};
use crate::failure::CommandError;
use crate::output::Output;

#[derive(Debug, Default)]
pub(super) struct Account {
    seed: u64,
    seconds: f64,
    sent: usize,
    delivered: usize,
    dead: usize,
    expired: usize,
    unsettled: usize,
    attempts: usize,
    retried: usize,
    pub(super) circuits_opened: usize,
    arrivals: usize,
    acknowledged: usize,
    duplicates: usize,
    stalls: usize,
    answers: BTreeMap<u16, usize>,
    keys: usize,
    order_violations: usize,
    /// Of what was sent before its receiver went down.
    latency_calm_p50: f64,
    latency_p50: f64,
    latency_p99: f64,
    /// Empty when everything adds up.
    pub(super) complaints: Vec<String>,
}

impl Account {
    pub(super) async fn draw_up(
        store: &dyn Operate,
        store_name: &str,
        plan: &DemoPlan,
        sent: &[SentMessage],
        ledgers: &[Ledger],
        seconds: f64,
    ) -> Result<Self, CommandError> {
        let mut account = Self { seed: plan.seed, seconds, sent: sent.len(), ..Self::default() };
        account.read_receivers(ledgers);
        let delivered: HashMap<&str, f64> = ledgers.iter().flat_map(Ledger::delivered).collect();
        let mut known = 0;
        let mut calm = Vec::new();
        for one in sent {
            let story = store.story(one.id).await?;
            let id = format!("msg_{store_name}_{}", one.id);
            let acknowledged = delivered.contains_key(id.as_str());
            known += usize::from(acknowledged);
            if one.planned.at < plan.outage(one.planned.endpoint).begins {
                calm.extend(delivered.get(id.as_str()));
            }
            account.enter(one, &story, acknowledged);
        }
        let mut latencies: Vec<f64> = delivered.values().copied().collect();
        latencies.sort_by(f64::total_cmp);
        calm.sort_by(f64::total_cmp);
        account.latency_calm_p50 = percentile(&calm, 0.50);
        account.latency_p50 = percentile(&latencies, 0.50);
        account.latency_p99 = percentile(&latencies, 0.99);
        account.close(plan, delivered.len() - known);
        Ok(account)
    }

    fn read_receivers(&mut self, ledgers: &[Ledger]) {
        for ledger in ledgers {
            self.arrivals += ledger.arrivals.len();
            self.acknowledged += ledger.delivered().len();
            self.duplicates += ledger.duplicates();
            self.stalls += ledger.stalls();
            let (keys, violations) = ledger.order();
            self.keys += keys;
            self.order_violations += violations;
            for (status, count) in ledger.answers() {
                *self.answers.entry(status).or_default() += count;
            }
            self.expect(ledger.renamed() == 0, || "a message came under two ids".to_owned());
            let highest = ledger.highest_attempt();
            self.expect(highest <= ATTEMPTS_MAX, || {
                format!("attempt {highest} is above the limit of {ATTEMPTS_MAX}")
            });
        }
    }

    /// What the store says of one message, and whether its receiver agrees.
    fn enter(&mut self, one: &SentMessage, story: &Story, acknowledged: bool) {
        let attempts = story.attempt_count as usize;
        self.attempts += attempts;
        self.retried += usize::from(attempts > 1);
        let (id, poison) = (one.id, one.planned.kind == PlannedKind::Poison);
        match story.state {
            State::Completed => {
                self.delivered += 1;
                self.expect(acknowledged, || {
                    format!("message {id} is completed, and no receiver accepted it")
                });
                self.expect(!poison, || format!("message {id} is poison, and completed"));
            }
            State::Dead => {
                self.dead += 1;
                self.expect(poison, || format!("message {id} is dead, and was no poison"));
                self.expect(!acknowledged, || format!("message {id} is dead, and a receiver accepted it"));
            }
            State::Expired => {
                self.expired += 1;
                self.expect(!acknowledged, || format!("message {id} is expired, and a receiver accepted it"));
            }
            State::Pending | State::Processing | State::Cancelled => self.unsettled += 1,
        }
    }

    fn close(&mut self, plan: &DemoPlan, strangers: usize) {
        let (sent, accounted) = (self.sent, self.delivered + self.dead + self.expired);
        self.expect(sent == plan.messages.len(), || "not everything planned was sent".to_owned());
        self.expect(sent == accounted, || format!("{sent} were sent and {accounted} are accounted for"));
        self.expect(strangers == 0, || format!("receivers accepted {strangers} messages that were not sent"));
        let violations = self.order_violations;
        self.expect(violations == 0, || format!("order was broken {violations} times"));
    }

    fn expect(&mut self, holds: bool, complaint: impl FnOnce() -> String) {
        if !holds {
            self.complaints.push(complaint());
        }
    }

    pub(super) fn json(&self) -> Value {
        let answers: serde_json::Map<String, Value> =
            self.answers.iter().map(|(status, count)| (status.to_string(), json!(count))).collect();
        json!({
            "adds_up": self.complaints.is_empty(),
            "complaints": self.complaints,
            "sent": self.sent,
            "delivered": self.delivered,
            "dead": self.dead,
            "expired": self.expired,
            "unsettled": self.unsettled,
            "attempts": self.attempts,
            "messages_retried": self.retried,
            "circuits_opened": self.circuits_opened,
            "order": { "keys": self.keys, "violations": self.order_violations },
            "receivers": {
                "arrivals": self.arrivals,
                "accepted": self.acknowledged,
                "duplicates": self.duplicates,
                "stalls": self.stalls,
                "answers": answers,
            },
            "latency_seconds": {
                "p50_before_outage": self.latency_calm_p50, "p50": self.latency_p50, "p99": self.latency_p99,
            },
            "seconds": self.seconds,
            "seed": self.seed,
        })
    }

    pub(super) fn text(&self, output: Output) -> String {
        let number = |value: usize| value.to_string();
        let right = style("✓").green().bold();
        let wrong = style("✗").red().bold();
        let mark = |holds: bool| if holds { &right } else { &wrong };
        let rows = [
            ("sent", number(self.sent), "committed to the store"),
            ("delivered", number(self.delivered), "acknowledged, as the store and the receivers say"),
            ("dead", number(self.dead), "poison, refused for good; in the DLQ, to be redriven or discarded"),
            ("expired", number(self.expired), "sent while the circuit was open, and worthless soon after"),
            ("attempts", number(self.attempts), "counted when they began"),
            ("retried", number(self.retried), "messages that needed more than one attempt"),
            (
                "duplicates",
                number(self.duplicates),
                "arrived again, because an acknowledgement came too late",
            ),
            ("circuit opened", number(self.circuits_opened), "times, and closed again after a probe"),
            (
                "median, calm",
                millis(self.latency_calm_p50),
                "from send to arrival, before the receiver went down",
            ),
            ("median", millis(self.latency_p50), "outages, open circuits and retries included"),
            ("99 %", millis(self.latency_p99), "likewise"),
            ("in all", format!("{:.1} s", self.seconds), ""),
        ];
        let rows = rows
            .iter()
            .map(|(name, value, note)| vec![(*name).to_owned(), value.clone(), (*note).to_owned()]);
        let table = output.table(&["account", "", ""], rows.collect());
        let accounted = self.delivered + self.dead + self.expired;
        let mut lines = vec![table, String::new()];
        lines.push(format!(
            "{} sent = delivered + dead + expired: {} = {} + {} + {}",
            mark(self.sent == accounted),
            self.sent,
            self.delivered,
            self.dead,
            self.expired
        ));
        lines.push(format!(
            "{} order held for each of {} keys, as the receivers saw it",
            mark(self.order_violations == 0),
            self.keys
        ));
        lines.push(format!(
            "{} store and receivers agree about every single message",
            mark(self.complaints.is_empty())
        ));
        lines.join("\n")
    }
}

fn millis(seconds: f64) -> String {
    if seconds < 1.0 { format!("{:.1} ms", seconds * 1e3) } else { format!("{seconds:.2} s") }
}

/// Of sorted values; 0 when there are none.
fn percentile(sorted: &[f64], part: f64) -> f64 {
    let at = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0.0)
}
