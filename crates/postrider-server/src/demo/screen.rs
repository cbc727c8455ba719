//! What a person sees while the demo runs: live on a terminal, a few lines in a pipe, nothing for JSON.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use console::style;
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use postrider::Operate;
use postrider::breaker::CircuitName;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::plan::DemoPlan;
use super::tally::{DemoCounts, DemoTally};
use super::{ALERTS, ORDERS};
use crate::output::Output;

const FRAME: Duration = Duration::from_millis(100);
const NEWS_SHOWN: usize = 6;

pub(super) struct Screen {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Screen {
    pub(super) fn start(
        plan: &DemoPlan,
        tally: Arc<DemoTally>,
        store: Arc<dyn Operate>,
        output: Output,
    ) -> Self {
        let stop = CancellationToken::new();
        let view = if output.json {
            View::Silent
        } else if output.is_live() {
            introduce(plan);
            View::Live(Box::new(Live::new(plan.messages.len() as u64)))
        } else {
            introduce(plan);
            View::Lines
        };
        let task = tokio::spawn(draw(view, tally, store, stop.clone()));
        Self { stop, task }
    }

    pub(super) async fn stop(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

enum View {
    Live(Box<Live>),
    Lines,
    Silent,
}

fn introduce(plan: &DemoPlan) {
    let say = |text: String| eprintln!("  {text}");
    eprintln!();
    say(format!(
        "{}  {}",
        style("postrider demo").bold().for_stderr(),
        style(format!("seed {}", plan.seed)).dim()
    ));
    eprintln!();
    say(format!(
        "{} messages go to two receivers on this machine: {ORDERS}, in order for each of {} customers,",
        plan.messages.len(),
        plan.keys
    ));
    say(format!("and {ALERTS}, in any order. Both fail, stall and go down for a while. A few messages are"));
    say("poison that no receiver accepts, and some are worthless after 1.5 seconds.".to_owned());
    eprintln!();
}

async fn draw(mut view: View, tally: Arc<DemoTally>, store: Arc<dyn Operate>, stop: CancellationToken) {
    let began = Instant::now();
    loop {
        let last = stop.is_cancelled();
        let (mut counts, news) = tally.look();
        match &mut view {
            View::Silent => {}
            View::Lines => {
                for line in news {
                    eprintln!("  {:>5.1} s  {line}", began.elapsed().as_secs_f64());
                }
            }
            View::Live(live) => {
                // What expires while it waits is no attempt; the store knows it as "not waiting any more".
                if let Ok(status) = store.status().await {
                    let open = (status.pending + status.processing) as usize;
                    counts.expired = counts.sent.saturating_sub(open + counts.delivered + counts.dead);
                }
                live.frame(&counts, news, began);
            }
        }
        if last {
            break;
        }
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(FRAME) => {}
        }
    }
    if let View::Live(live) = view {
        live.finish();
    }
}

struct Live {
    all: MultiProgress,
    bar: ProgressBar,
    counters: ProgressBar,
    circuits: ProgressBar,
    lines: Vec<ProgressBar>,
    news: VecDeque<String>,
    /// Settled so far at recent frames, for the rate.
    past: VecDeque<(Instant, usize)>,
}

impl Live {
    fn new(total: u64) -> Self {
        let all = MultiProgress::new();
        let text = ProgressStyle::with_template("  {msg}").expect("the template is right");
        let line = || all.add(ProgressBar::new(0).with_style(text.clone()));
        let bar = all.add(
            ProgressBar::new(total).with_style(
                ProgressStyle::with_template(
                    "  {bar:50.green/dim} {human_pos} of {human_len} settled  {elapsed}",
                )
                .expect("the template is right")
                .progress_chars("━━─"),
            ),
        );
        let (counters, circuits) = (line(), line());
        let _ = line();
        let lines = (0..NEWS_SHOWN).map(|_| line()).collect();
        Self { all, bar, counters, circuits, lines, news: VecDeque::new(), past: VecDeque::new() }
    }

    fn frame(&mut self, counts: &DemoCounts, news: Vec<String>, began: Instant) {
        let settled = counts.delivered + counts.dead + counts.expired;
        let rate = self.rate(settled);
        self.bar.set_position(settled as u64);
        let figure = |name: &str, value: usize| format!("{} {name}", style(value).bold());
        self.counters.set_message(format!(
            "{} · {} · {} · {} · {} · {}/s",
            figure("sent", counts.sent),
            style(figure("delivered", counts.delivered)).green(),
            style(figure("retries", counts.retries)).yellow(),
            style(figure("dead", counts.dead)).red(),
            figure("expired", counts.expired),
            rate,
        ));
        let circuit = |name: &str| match counts.circuits.get(name) {
            None | Some(CircuitName::Closed) => format!("{name} {}", style("● closed").green()),
            Some(CircuitName::HalfOpen) => format!("{name} {}", style("◐ half open").yellow()),
            Some(CircuitName::Open) => format!("{name} {}", style("○ open").red()),
        };
        self.circuits.set_message(format!("circuits: {}   {}", circuit(ORDERS), circuit(ALERTS)));
        for line in news {
            let at = style(format!("{:>5.1} s", began.elapsed().as_secs_f64())).dim();
            self.news.push_back(format!("{at}  {line}"));
            if self.news.len() > NEWS_SHOWN {
                self.news.pop_front();
            }
        }
        for (line, text) in self.lines.iter().zip(&self.news) {
            line.set_message(text.clone());
        }
    }

    fn rate(&mut self, settled: usize) -> usize {
        let now = Instant::now();
        self.past.push_back((now, settled));
        while self.past.front().is_some_and(|(at, _)| now - *at > Duration::from_secs(1)) {
            self.past.pop_front();
        }
        let (at, then) = self.past.front().copied().unwrap_or((now, settled));
        let seconds = (now - at).as_secs_f64();
        if seconds < 0.05 { 0 } else { (settled.saturating_sub(then) as f64 / seconds) as usize }
    }

    /// What was shown stays on the screen, above the account.
    fn finish(self) {
        for bar in [&self.bar, &self.counters, &self.circuits].into_iter().chain(&self.lines) {
            bar.abandon();
        }
        drop(self.all);
        eprintln!();
    }
}
