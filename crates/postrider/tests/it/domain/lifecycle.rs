//! `docs/lifecycle.md` and the code say the same.

use std::collections::BTreeSet;

use postrider::State;

const PAGE: &str = include_str!("../../../../../docs/lifecycle.md");

fn state(name: &str) -> State {
    State::ALL
        .into_iter()
        .find(|state| state.as_str() == name)
        .unwrap_or_else(|| panic!("{name} is no state"))
}

/// The rows of the table: from, to, who, when.
fn rows() -> Vec<Vec<&'static str>> {
    let cells = |line: &'static str| line.trim().trim_matches('|').split('|').map(str::trim).collect();
    let is_row = |line: &&str| line.starts_with("| `");
    PAGE.lines().filter(is_row).map(cells).collect()
}

fn moves_in_code() -> BTreeSet<(State, State)> {
    State::ALL.into_iter().flat_map(|from| from.next().iter().map(move |to| (from, *to))).collect()
}

#[test]
fn the_table_lists_exactly_the_moves_there_are() {
    let rows = rows();
    let named = |cell: &str| state(cell.trim_matches('`'));
    let moves: Vec<_> = rows.iter().map(|row| (named(row[0]), named(row[1]))).collect();
    let on_page: BTreeSet<_> = moves.iter().copied().collect();
    assert_eq!(on_page.len(), moves.len(), "a move is listed twice");
    assert_eq!(on_page, moves_in_code());
    for row in rows {
        assert_eq!(row.len(), 4, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
    }
}

#[test]
fn the_picture_draws_exactly_the_moves_there_are() {
    let picture =
        PAGE.split("```mermaid").nth(1).and_then(|rest| rest.split("```").next()).expect("a picture");
    let arrow = |line: &str| {
        let (from, rest) = line.trim().split_once(" --> ")?;
        let to = rest.split(':').next()?.trim();
        (from != "[*]" && to != "[*]").then(|| (state(from), state(to)))
    };
    let drawn: BTreeSet<_> = picture.lines().filter_map(arrow).collect();
    assert_eq!(drawn, moves_in_code());
}

#[test]
fn a_finished_message_never_moves_again_but_for_a_late_delivery() {
    for state in State::ALL {
        let expected: Option<&[State]> = match state {
            State::Completed | State::Expired => Some(&[]),
            State::Cancelled => Some(&[State::Completed]),
            State::Pending | State::Processing | State::Dead => None,
        };
        assert!(expected.is_none_or(|expected| state.next() == expected), "{state}");
    }
}
