//! How a command answers: tables on a terminal, plain columns in a pipe, JSON when asked.

use std::io::{ErrorKind, Write};

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{Cell, ContentArrangement, Table};

use crate::failure::Failure;

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
    ) -> Result<(), Failure> {
        self.line(&if self.json { json() } else { text() })
    }

    pub(crate) fn line(self, text: &str) -> Result<(), Failure> {
        self.try_line(text).map(|_| ())
    }

    /// False when the reader went away (`| head`), which is no failure: whoever has more to say need not go on.
    pub(crate) fn try_line(self, text: &str) -> Result<bool, Failure> {
        written(writeln!(std::io::stdout(), "{}", text.trim_end()))
    }

    pub(crate) fn table(self, header: &[&str], rows: Vec<Vec<String>>) -> String {
        let mut table = Table::new();
        if self.terminal {
            table.load_style(UTF8_FULL_CONDENSED.with_rounded_corners());
            // One that does not say how wide it is would have one letter in each line.
            if console::Term::stdout().size().1 > 0 {
                table.set_content_arrangement(ContentArrangement::Dynamic);
            }
            table.set_header(
                header.iter().map(|text| Cell::new(text).add_attribute(comfy_table::Attribute::Bold)),
            );
        } else {
            table.load_style(NOTHING);
            table.set_header(header.iter().map(Cell::new));
        }
        for row in rows {
            table.add_row(row);
        }
        let text = table.to_string();
        text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    }
}

/// Whether somebody still reads.
pub(crate) fn written(written: std::io::Result<()>) -> Result<bool, Failure> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::failed(format!("cannot write the answer: {error}"))),
    }
}
