//! What `top` draws: a few lines about everything, and a table of endpoints with the busiest first.

use std::cmp::Reverse;
use std::time::Instant;

use jiff::Timestamp;
use postrider::breaker::CircuitName;
use postrider::store::EndpointStatus;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table};

use super::picture::{Flow, Picture};
use crate::view;

/// Beside the name, with their widths. As many as fit are shown, so the first are what one wants to know first.
const COLUMNS: [(&str, u16); 9] = [
    ("circuit", 9),
    ("delivered/s", 11),
    ("failed/s", 8),
    ("pending", 8),
    ("oldest", 6),
    ("dead", 7),
    ("p99", 7),
    ("processing", 10),
    ("state", 8),
];
const NAME_WIDTH_MAX: usize = 40;
const SPACING: u16 = 2;

/// What the hands of the clocks say while it is drawn.
#[derive(Clone, Copy)]
pub(super) struct Now {
    pub(super) instant: Instant,
    pub(super) timestamp: Timestamp,
}

pub(super) fn draw(frame: &mut Frame<'_>, picture: &Picture, now: Now) {
    let head = head(picture, now);
    let rows = [Constraint::Length(head.len() as u16 + 1), Constraint::Min(0), Constraint::Length(1)];
    let [top, middle, bottom] = Layout::vertical(rows).areas(frame.area());
    frame.render_widget(Paragraph::new(head), top);
    let hidden = draw_endpoints(frame, middle, picture, now.timestamp);
    let more = if hidden > 0 { format!("and {hidden} more endpoints   ") } else { String::new() };
    frame.render_widget(Line::from(format!("{more}q quits")).style(Modifier::DIM), bottom);
}

fn head(picture: &Picture, now: Now) -> Vec<Line<'static>> {
    let status = picture.status();
    let flow = picture.flow_of_all();
    let mut lines = vec![
        Line::from(format!("postrider at {}", picture.address)).style(Modifier::BOLD),
        Line::from(format!(
            "delivered {}/s   failed {}/s   from creation to delivery p50 {}, p99 {}",
            rate(flow.as_ref().map(|flow| flow.delivered_per_second)),
            rate(flow.as_ref().map(|flow| flow.failed_per_second)),
            took(flow.as_ref().and_then(|flow| flow.p50)),
            took(flow.as_ref().and_then(|flow| flow.p99)),
        )),
        Line::from(format!(
            "pending {}   processing {}   dead {}   the oldest waits {}",
            status.pending,
            status.processing,
            status.dead,
            age(status.oldest_pending, now.timestamp),
        )),
    ];
    if let Some(reason) = &status.paused {
        lines.push(Line::from(format!("everything is paused: {reason}")).style(Color::Yellow));
    }
    if let Some(trouble) = &picture.trouble {
        let age = now.instant.saturating_duration_since(picture.at()).as_secs();
        lines.push(Line::from(trouble.clone()).style(Color::Red));
        lines.push(Line::from(format!("asking again; this is how it was {age}s ago")).style(Color::Red));
    }
    lines
}

/// How many there was no room for.
fn draw_endpoints(frame: &mut Frame<'_>, area: Rect, picture: &Picture, now: Timestamp) -> usize {
    let endpoints = by_work(&picture.status().endpoints);
    let longest = endpoints.iter().map(|endpoint| endpoint.name.len()).max().unwrap_or_default();
    let name_width = longest.clamp("endpoint".len(), NAME_WIDTH_MAX) as u16;
    let columns = columns_that_fit(area.width.saturating_sub(name_width));
    let header = ["endpoint"].into_iter().chain(COLUMNS.iter().map(|column| column.0)).take(columns + 1);
    let widths = [name_width].into_iter().chain(COLUMNS.iter().map(|column| column.1)).take(columns + 1);
    // One line is the header.
    let room = usize::from(area.height.saturating_sub(1));
    let hidden = endpoints.len().saturating_sub(room);
    let rows = endpoints.into_iter().take(room).map(|endpoint| {
        let row = row(endpoint, picture.flow(&endpoint.name), now);
        Row::new(cells(row).take(columns + 1)).style(style(endpoint.circuit))
    });
    let header = Row::new(cells(header)).style(Modifier::BOLD);
    let table = Table::new(rows, widths.map(Constraint::Length)).header(header).column_spacing(SPACING);
    frame.render_widget(table, area);
    hidden
}

fn columns_that_fit(width: u16) -> usize {
    let ends = COLUMNS.iter().scan(0, |end, (_, width)| {
        *end += SPACING + width;
        Some(*end)
    });
    ends.take_while(|end| *end <= width).count()
}

fn by_work(endpoints: &[EndpointStatus]) -> Vec<&EndpointStatus> {
    let mut sorted: Vec<&EndpointStatus> = endpoints.iter().collect();
    sorted.sort_by_key(|endpoint| Reverse(endpoint.pending + endpoint.processing));
    sorted
}

fn row(endpoint: &EndpointStatus, flow: Option<Flow>, now: Timestamp) -> [String; COLUMNS.len() + 1] {
    let state = match (endpoint.enabled, endpoint.paused) {
        (false, _) => "disabled",
        (true, true) => "paused",
        (true, false) => "enabled",
    };
    [
        endpoint.name.clone(),
        endpoint.circuit.as_str().to_owned(),
        rate(flow.as_ref().map(|flow| flow.delivered_per_second)),
        rate(flow.as_ref().map(|flow| flow.failed_per_second)),
        endpoint.pending.to_string(),
        age(endpoint.oldest_pending, now),
        endpoint.dead.to_string(),
        took(flow.and_then(|flow| flow.p99)),
        endpoint.processing.to_string(),
        state.to_owned(),
    ]
}

/// Words stand on the left, numbers on the right.
fn cells<T: Into<Text<'static>>>(texts: impl IntoIterator<Item = T>) -> impl Iterator<Item = Cell<'static>> {
    texts.into_iter().enumerate().map(|(at, text)| match at {
        0 | 1 | 9 => Cell::from(text.into()),
        _ => Cell::from(text.into().right_aligned()),
    })
}

fn style(circuit: CircuitName) -> Style {
    match circuit {
        CircuitName::Closed => Style::new(),
        CircuitName::HalfOpen => Style::new().fg(Color::Yellow),
        CircuitName::Open => Style::new().fg(Color::Red),
    }
}

fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map_or("-".to_owned(), |at| view::age(at, now))
}

fn rate(per_second: Option<f64>) -> String {
    match per_second {
        None => "-".to_owned(),
        // Few are still some.
        Some(rate) if rate > 0.0 && rate < 10.0 => format!("{rate:.1}"),
        Some(rate) => format!("{rate:.0}"),
    }
}

fn took(seconds: Option<f64>) -> String {
    match seconds {
        None => "-".to_owned(),
        Some(seconds) if seconds < 0.01 => format!("{:.1}ms", seconds * 1000.0),
        Some(seconds) if seconds < 1.0 => format!("{:.0}ms", seconds * 1000.0),
        Some(seconds) if seconds < 100.0 => format!("{seconds:.1}s"),
        Some(seconds) => format!("{:.0}m", seconds / 60.0),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    use postrider::store::EndpointHealth;

    use super::super::look::{EndpointCounts, TopSample};
    use super::*;

    fn look(at: Instant, delivered: f64) -> TopSample {
        let endpoint = |name: &str, circuit: &str, pending: u64| {
            json!({ "name": name, "protocol": "http", "health": EndpointHealth::default(), "enabled": true, "paused": false, "circuit": circuit, "pending": pending,
                "processing": 1, "dead": 2, "oldest_pending": "2026-01-15T11:58:00Z" })
        };
        let endpoints =
            [endpoint("quiet", "closed", 0), endpoint("shop", "open", 7), endpoint("till", "closed", 3)];
        let status = json!({ "store": "x", "schema_version": 1, "live_nodes": 1, "stored_events": 0, "paused": "moving house", "pending": 10, "processing": 3, "dead": 6,
            "oldest_pending": "2026-01-15T11:58:00Z", "endpoints": endpoints });
        let within = vec![(0.1, delivered / 2.0), (1.0, delivered), (f64::INFINITY, delivered)];
        let counted =
            BTreeMap::from([("shop".to_owned(), EndpointCounts { delivered, failed: 4.0, within })]);
        TopSample { at, status: serde_json::from_value(status).expect("a status"), counted }
    }

    fn terminal(picture: &Picture, instant: Instant, (width, height): (u16, u16)) -> Terminal<TestBackend> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        let now = Now { instant, timestamp: "2026-01-15T12:00:00Z".parse().expect("a time") };
        terminal.draw(|frame| draw(frame, picture, now)).expect("it draws");
        terminal
    }

    fn drawn(picture: &Picture, instant: Instant, size: (u16, u16)) -> String {
        let backend = terminal(picture, instant, size).backend().to_string();
        let lines: Vec<&str> = backend.lines().map(|line| line.trim_matches('"').trim_end()).collect();
        lines.join("\n")
    }

    #[test]
    fn the_screen_shows_rates_depth_and_the_busiest_endpoints_first() {
        let began = Instant::now();
        let mut picture = Picture::new("http://127.0.0.1:7171".to_owned(), look(began, 100.0));
        let first = drawn(&picture, began, (110, 12));
        picture.take(look(began + Duration::from_secs(2), 150.0));
        let second = drawn(&picture, began, (60, 8));
        picture.miss("cannot reach a node".to_owned());
        let third = drawn(&picture, began + Duration::from_secs(9), (110, 13));
        insta::assert_snapshot!([first, second, third].join("\n\n"));
    }

    #[test]
    fn no_terminal_is_too_small() {
        let began = Instant::now();
        let mut picture = Picture::new("http://127.0.0.1:7171".to_owned(), look(began, 100.0));
        picture.miss("cannot reach a node".to_owned());
        for width in 0..120 {
            for height in 0..14 {
                terminal(&picture, began, (width, height));
            }
        }
        assert_eq!(columns_that_fit(0), 0);
        assert_eq!(columns_that_fit(u16::MAX), COLUMNS.len());
    }
}
