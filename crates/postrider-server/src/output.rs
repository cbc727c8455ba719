//! How a command answers: tables on a terminal, plain columns in a pipe, JSON when asked.

use std::io::{ErrorKind, Write};

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, ColumnConstraint, ContentArrangement, Table, Width};

use crate::failure::CommandError;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    pub(crate) json: bool,
    terminal: bool,
}

impl Output {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, terminal: console::user_attended() }
    }

    /// Live displays make sense.
    pub(crate) fn is_live(self) -> bool {
        !self.json && self.terminal && console::user_attended_stderr()
    }

    /// Lines are read by a person, now.
    pub(crate) fn is_for_people(self) -> bool {
        !self.json && self.terminal
    }

    /// One document: JSON when asked for, else what `text` makes of it.
    pub(crate) fn document(
        self,
        json: impl FnOnce() -> String,
        text: impl FnOnce() -> String,
    ) -> Result<(), CommandError> {
        self.line(&if self.json { json() } else { text() })
    }

    pub(crate) fn line(self, text: &str) -> Result<(), CommandError> {
        self.try_line(text).map(|_| ())
    }

    /// False when the reader went away (`| head`), which is no failure: the caller may stop writing.
    pub(crate) fn try_line(self, text: &str) -> Result<bool, CommandError> {
        written(writeln!(std::io::stdout(), "{}", text.trim_end()))
    }

    pub(crate) fn table(self, header: &[&str], rows: Vec<Vec<String>>) -> String {
        let words: Vec<usize> = (0..header.len()).map(|at| longest_word(header, &rows, at)).collect();
        let mut table = Table::new();
        if self.terminal {
            table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
            table.set_header(
                header.iter().map(|text| Cell::new(text).add_attribute(comfy_table::Attribute::Bold)),
            );
        } else {
            table.load_style(NOTHING);
            table.set_header(header.iter().map(Cell::new));
        }
        table.add_rows(rows);
        // One that does not say how wide it is would have one letter in each line.
        let width = usize::from(console::Term::stdout().size().1);
        if self.terminal && width > 0 {
            table.set_content_arrangement(ContentArrangement::Dynamic);
            keep_words(&mut table, &words, width);
        }
        let text = table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

/// A column's padding and the line behind it.
const BESIDE_WORD: usize = 3;

fn longest_word(header: &[&str], rows: &[Vec<String>], column: usize) -> usize {
    let cells = rows.iter().filter_map(|row| row.get(column)).map(String::as_str);
    let words = cells.chain([header[column]]).flat_map(str::split_whitespace);
    words.map(console::measure_text_width).max().unwrap_or_default()
}

/// Lines break between words only, where there is room for that.
fn keep_words(table: &mut Table, words: &[usize], width: usize) {
    if words.iter().map(|word| word + BESIDE_WORD).sum::<usize>() < width {
        let at_least = |word: &usize| {
            let padded = u16::try_from(word + BESIDE_WORD - 1).unwrap_or(u16::MAX);
            ColumnConstraint::LowerBoundary(Width::Fixed(padded))
        };
        table.set_constraints(words.iter().map(at_least));
    }
}

/// Whether the output still has a reader.
pub(crate) fn written(written: std::io::Result<()>) -> Result<bool, CommandError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(CommandError::failed(format!("cannot write the answer: {error}"))),
    }
}
