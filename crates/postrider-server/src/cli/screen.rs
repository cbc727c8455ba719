//! What `top` draws: a few lines about everything, and a table of endpoints with the busiest first.

use jiff::Timestamp;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table};

use super::look::{Attempts, EndpointLook, Look};
use crate::view;

const HEADER: [&str; 9] =
    ["endpoint", "state", "circuit", "delivered/s", "failed/s", "pending", "processing", "dead", "oldest"];

/// The last two looks, of which rates are the difference.
pub(super) struct Picture {
    address: String,
    before: Option<Look>,
    now: Look,
    /// Why the node could not be asked just now.
    trouble: Option<String>,
}

impl Picture {
    pub(super) fn new(address: String, first: Look) -> Self {
        Self { address, before: None, now: first, trouble: None }
    }

    pub(super) fn take(&mut self, look: Look) {
        self.before = Some(std::mem::replace(&mut self.now, look));
        self.trouble = None;
    }

    pub(super) fn miss(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    /// Attempts a second; none is known from one look, nor across a restart of the node.
    fn rate(&self, endpoint: &str) -> Option<Attempts> {
        let before = self.before.as_ref()?;
        let seconds = (self.now.at - before.at).as_secs_f64();
        let of = |look: &Look| look.attempts.get(endpoint).copied().unwrap_or_default();
        let (then, now) = (of(before), of(&self.now));
        let is_known = seconds > 0.0 && now.delivered >= then.delivered && now.failed >= then.failed;
        is_known.then(|| Attempts {
            delivered: (now.delivered - then.delivered) / seconds,
            failed: (now.failed - then.failed) / seconds,
        })
    }

    /// Endpoints that share one label because there are many count here too.
    fn rate_of_all(&self) -> Option<Attempts> {
        self.before.as_ref()?;
        let rates = self.now.attempts.keys().map(|name| self.rate(name));
        rates.sum::<Option<Attempts>>()
    }
}

impl std::iter::Sum for Attempts {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            delivered: sum.delivered + one.delivered,
            failed: sum.failed + one.failed,
        })
    }
}

pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture, now: Timestamp) {
    let head = head(picture, now);
    let rows = [Constraint::Length(head.len() as u16 + 1), Constraint::Min(0), Constraint::Length(1)];
    let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(ratatui::text::Text::from(head), top);
    // One line is the header.
    let room = usize::from(middle.height.saturating_sub(1));
    let endpoints = by_work(&picture.now.status.endpoints);
    let hidden = endpoints.len().saturating_sub(room);
    let shown = endpoints.into_iter().take(room).map(|endpoint| row(endpoint, picture, now));
    let widths = [Constraint::Min(12), Constraint::Length(9), Constraint::Length(9)].into_iter();
    let widths = widths.chain(HEADER[3..].iter().map(|text| Constraint::Length(text.len() as u16 + 1)));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    frame.render_widget(Table::new(shown, widths).header(Row::new(HEADER).style(bold)), middle);
    let more = if hidden > 0 { format!("and {hidden} more endpoints   ") } else { String::new() };
    frame.render_widget(Line::from(format!("{more}q quits")).style(Modifier::DIM), bottom);
}

fn head(picture: &Picture, now: Timestamp) -> Vec<Line<'static>> {
    let status = &picture.now.status;
    let oldest = status.oldest_pending.map_or("-".to_owned(), |at| view::age(at, now));
    let (delivered, failed) = rates(picture.rate_of_all());
    let mut lines = vec![
        Line::from(format!("postrider at {}", picture.address)).style(Modifier::BOLD),
        Line::from(format!("delivered {delivered}/s   failed {failed}/s")),
        Line::from(format!(
            "pending {}   processing {}   dead {}   the oldest waits {oldest}",
            status.pending, status.processing, status.dead
        )),
    ];
    if let Some(reason) = &status.paused {
        lines.push(Line::from(format!("everything is paused: {reason}")).style(Color::Yellow));
    }
    if let Some(trouble) = &picture.trouble {
        lines.push(Line::from(trouble.clone()).style(Color::Red));
    }
    lines
}

fn by_work(endpoints: &[EndpointLook]) -> Vec<&EndpointLook> {
    let mut sorted: Vec<&EndpointLook> = endpoints.iter().collect();
    sorted.sort_by_key(|endpoint| std::cmp::Reverse(endpoint.pending + endpoint.processing));
    sorted
}

fn row(endpoint: &EndpointLook, picture: &Picture, now: Timestamp) -> Row<'static> {
    let state = match (endpoint.enabled, endpoint.paused) {
        (false, _) => "disabled",
        (true, true) => "paused",
        (true, false) => "enabled",
    };
    let (delivered, failed) = rates(picture.rate(&endpoint.name));
    let style = match endpoint.circuit.as_str() {
        "closed" => Style::new(),
        "half_open" => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    };
    let cells = [
        endpoint.name.clone(),
        state.to_owned(),
        endpoint.circuit.clone(),
        delivered,
        failed,
        endpoint.pending.to_string(),
        endpoint.processing.to_string(),
        endpoint.dead.to_string(),
        endpoint.oldest_pending.map_or("-".to_owned(), |at| view::age(at, now)),
    ];
    Row::new(cells).style(style)
}

fn rates(rate: Option<Attempts>) -> (String, String) {
    let text = |value: fn(&Attempts) -> f64| {
        rate.as_ref().map_or("-".to_owned(), |rate| format!("{:.0}", value(rate)))
    };
    (text(|rate| rate.delivered), text(|rate| rate.failed))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use super::*;

    fn look(at: Instant, delivered: f64) -> Look {
        let endpoint = |name: &str, circuit: &str, pending: u64| {
            json!({ "name": name, "enabled": true, "paused": false, "circuit": circuit, "pending": pending,
                "processing": 1, "dead": 2, "oldest_pending": "2026-01-15T11:58:00Z" })
        };
        let endpoints =
            [endpoint("quiet", "closed", 0), endpoint("shop", "open", 7), endpoint("till", "closed", 3)];
        let status = json!({ "paused": "moving house", "pending": 10, "processing": 3, "dead": 6,
            "oldest_pending": "2026-01-15T11:58:00Z", "endpoints": endpoints });
        let attempts = BTreeMap::from([("shop".to_owned(), Attempts { delivered, failed: 4.0 })]);
        Look { at, status: serde_json::from_value(status).expect("a status"), attempts }
    }

    fn drawn(picture: &Picture, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(96, height)).expect("a terminal");
        let now = "2026-01-15T12:00:00Z".parse().expect("a time");
        terminal.draw(|frame| draw(frame, picture, now)).expect("it draws");
        let lines: Vec<String> = terminal
            .backend()
            .to_string()
            .lines()
            .map(|line| line.trim_matches('"').trim_end().to_owned())
            .collect();
        lines.join("\n")
    }

    #[test]
    fn the_screen_shows_rates_depth_and_the_busiest_endpoints_first() {
        let began = Instant::now();
        let mut picture = Picture::new("http://127.0.0.1:7171".to_owned(), look(began, 100.0));
        let first = drawn(&picture, 12);
        picture.take(look(began + Duration::from_secs(2), 150.0));
        let second = drawn(&picture, 8);
        picture.miss("cannot reach a node".to_owned());
        let third = drawn(&picture, 12);
        insta::assert_snapshot!([first, second, third].join("\n\n"));
    }

    #[test]
    fn a_node_that_restarted_has_no_rate_yet() {
        let began = Instant::now();
        let mut picture = Picture::new(String::new(), look(began, 100.0));
        picture.take(look(began + Duration::from_secs(2), 3.0));
        assert_eq!(picture.rate("shop"), None);
        assert_eq!(picture.rate_of_all(), None);
    }
}
