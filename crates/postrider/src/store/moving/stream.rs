//! The lines of the stream, and its checksum.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};

use jiff::Timestamp;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value as Json};
use sha2::{Digest, Sha256};

use super::{MoveError, Moved, MovedValue, Rows, Section};

/// What this build writes and reads.
const VERSION: u64 = 2;
const BUFFER_BYTES: usize = 256 * 1024;
/// Room for the largest payload, as base64 or with every character escaped, and for the other columns.
const LINE_BYTES_MAX: u64 = 512 * 1024 * 1024;
/// Rows in one batch; fewer when they are large.
const BATCH_ROWS: usize = 500;
const BATCH_BYTES: usize = 1024 * 1024;

/// The first line: what a store has once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StreamHeader {
    postrider_export: u64,
    /// The store's name.
    pub(crate) store: String,
    pub(crate) exported_at: Timestamp,
    /// Why everything is paused, if it is.
    pub(crate) paused: Option<String>,
    pub(crate) last_ids: LastIds,
    /// First days of the months in which archived messages were made.
    pub(crate) archive_months: Vec<String>,
    /// First days of the months in which attempts were made.
    pub(crate) attempt_months: Vec<String>,
}

/// The highest ids ever given: none is given again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LastIds {
    pub(crate) message: i64,
    pub(crate) endpoint: i64,
    pub(crate) node: i64,
    pub(crate) dead_letter: i64,
    pub(crate) event: i64,
    pub(crate) subscription: i64,
    pub(crate) replay: i64,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StreamEnd {
    rows: Rows,
    /// Of every byte before this line.
    sha256: String,
}

impl StreamHeader {
    pub(crate) fn new(
        store: String,
        exported_at: Timestamp,
        paused: Option<String>,
        last_ids: LastIds,
    ) -> Self {
        let (archive_months, attempt_months) = (Vec::new(), Vec::new());
        Self {
            postrider_export: VERSION,
            store,
            exported_at,
            paused,
            last_ids,
            archive_months,
            attempt_months,
        }
    }

    fn parse(line: Json) -> Result<Self, MoveError> {
        let foreign = "this is not an export of postrider, which begins with a line {\"postrider_export\":…";
        match line.get("postrider_export").map(Json::as_u64) {
            None => Err(MoveError::Foreign(foreign.to_owned())),
            Some(Some(VERSION)) => serde_json::from_value(line).map_err(|error| damaged(1, error)),
            Some(other) => Err(MoveError::Foreign(format!(
                "this export has format version {} and this build reads version {VERSION}; import it with the \
                 postrider that made it, or a newer one",
                other.map_or("?".to_owned(), |version| version.to_string())
            ))),
        }
    }
}

/// Writes a stream.
pub(crate) struct StreamWriter<W: Write> {
    to: BufWriter<W>,
    hash: Sha256,
    line: Vec<u8>,
    moved: Moved,
}

impl<W: Write> StreamWriter<W> {
    pub(crate) fn begin(to: W, header: &StreamHeader) -> Result<Self, MoveError> {
        let moved = Moved { store: header.store.clone(), rows: Rows::default() };
        let to = BufWriter::with_capacity(BUFFER_BYTES, to);
        let mut outgoing = Self { to, hash: Sha256::new(), line: Vec::new(), moved };
        outgoing.write_line(header)?;
        Ok(outgoing)
    }

    pub(crate) fn row(&mut self, section: &Section, row: &[MovedValue]) -> Result<(), MoveError> {
        *(section.count)(&mut self.moved.rows) += 1;
        self.write_line(&StreamLine { section, row })
    }

    pub(crate) fn end(mut self) -> Result<Moved, MoveError> {
        let sha256 = hex(&self.hash.clone().finalize());
        let end = StreamEnd { rows: self.moved.rows, sha256 };
        self.write_line(&Map::from_iter([(
            "end".to_owned(),
            serde_json::to_value(end).expect("numbers become JSON"),
        )]))?;
        self.to.flush()?;
        Ok(self.moved)
    }

    fn write_line(&mut self, line: &impl Serialize) -> Result<(), MoveError> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line).expect("plain values become JSON");
        self.line.push(b'\n');
        self.hash.update(&self.line);
        Ok(self.to.write_all(&self.line)?)
    }
}

/// `{"message":{"id":1,…}}`, without what is null.
struct StreamLine<'a> {
    section: &'a Section,
    row: &'a [MovedValue],
}

impl Serialize for StreamLine<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut line = to.serialize_map(Some(1))?;
        line.serialize_entry(self.section.name, &RowFields(self))?;
        line.end()
    }
}

struct RowFields<'a>(&'a StreamLine<'a>);

impl Serialize for RowFields<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let columns = self.0.section.columns.iter().map(|(name, _)| name);
        to.collect_map(columns.zip(self.0.row).filter(|(_, value)| **value != MovedValue::Null))
    }
}

/// Rows of one section.
pub(crate) struct Batch {
    pub(crate) section: &'static Section,
    pub(crate) rows: Vec<Vec<MovedValue>>,
}

/// Reads a stream. Each batch is well formed; only the end shows that the stream is complete.
pub(crate) struct Incoming<R: Read> {
    from: BufReader<R>,
    hash: Sha256,
    line: Vec<u8>,
    number: u64,
    moved: Moved,
    /// The last line was read and matches.
    is_whole: bool,
    /// The first row of the next batch.
    ahead: Option<(&'static Section, Vec<MovedValue>)>,
}

impl<R: Read> Incoming<R> {
    pub(crate) fn begin(from: R) -> Result<(Self, StreamHeader), MoveError> {
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        let (hash, line, moved) = (Sha256::new(), Vec::new(), Moved::default());
        let mut incoming = Self { from, hash, line, number: 0, moved, is_whole: false, ahead: None };
        let header = match incoming.read_line() {
            // A file of another kind may hold anything.
            Err(MoveError::Damaged(_)) => Json::Null,
            line => line?,
        };
        let header = StreamHeader::parse(header)?;
        incoming.moved.store = header.store.clone();
        incoming.hash.update(&incoming.line);
        Ok((incoming, header))
    }

    /// None at the end of a complete stream.
    pub(crate) fn next(&mut self) -> Result<Option<Batch>, MoveError> {
        let first = match self.ahead.take() {
            Some(row) => Some(row),
            None => self.row()?,
        };
        let Some((section, row)) = first else { return Ok(None) };
        let mut bytes = row_bytes(&row);
        let mut rows = vec![row];
        while rows.len() < BATCH_ROWS && bytes < BATCH_BYTES {
            match self.row()? {
                Some((same, row)) if std::ptr::eq(same, section) => {
                    bytes += row_bytes(&row);
                    rows.push(row);
                }
                other => {
                    self.ahead = other;
                    break;
                }
            }
        }
        Ok(Some(Batch { section, rows }))
    }

    pub(crate) fn moved(self) -> Moved {
        self.moved
    }

    fn row(&mut self) -> Result<Option<(&'static Section, Vec<MovedValue>)>, MoveError> {
        if self.is_whole {
            return Ok(None);
        }
        let line = self.read_line()?;
        let Json::Object(line) = line else { return Err(self.damaged("is not a row")) };
        let mut line = line.into_iter();
        let (Some((name, fields)), None) = (line.next(), line.next()) else {
            return Err(self.damaged("is not a row"));
        };
        if name == "end" {
            return self.check_end(fields).map(|()| None);
        }
        let Some(section) = Section::by_name(&name) else {
            return Err(self.damaged(format!("rows of {name:?} are not known here")));
        };
        self.hash.update(&self.line);
        *(section.count)(&mut self.moved.rows) += 1;
        Ok(Some((section, self.values(section, fields)?)))
    }

    fn values(&self, section: &Section, fields: Json) -> Result<Vec<MovedValue>, MoveError> {
        let Json::Object(mut fields) = fields else { return Err(self.damaged("is not a row")) };
        let mut values = Vec::with_capacity(section.columns.len());
        for (name, kind) in section.columns {
            let value = fields.swap_remove(*name).unwrap_or_default();
            let value = MovedValue::from_json(*kind, value);
            values.push(value.ok_or_else(|| self.damaged(format!("{name} is not what it should be")))?);
        }
        match fields.keys().next() {
            Some(unknown) => Err(self.damaged(format!("{unknown} is not known here"))),
            None => Ok(values),
        }
    }

    fn check_end(&mut self, fields: Json) -> Result<(), MoveError> {
        let end: StreamEnd = serde_json::from_value(fields).map_err(|error| damaged(self.number, error))?;
        if end.rows != self.moved.rows || end.sha256 != hex(&self.hash.clone().finalize()) {
            return Err(MoveError::Damaged("its checksum is not that of its lines".to_owned()));
        }
        self.is_whole = self.from.fill_buf()?.is_empty();
        match self.is_whole {
            true => Ok(()),
            false => Err(MoveError::Damaged("something follows its last line".to_owned())),
        }
    }

    fn read_line(&mut self) -> Result<Json, MoveError> {
        self.line.clear();
        self.number += 1;
        let read = (&mut self.from).take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line)?;
        if !self.line.ends_with(b"\n") {
            let cut = if read as u64 == LINE_BYTES_MAX {
                "is too long"
            } else {
                "is cut off, and so is what follows"
            };
            return Err(self.damaged(cut));
        }
        serde_json::from_slice(&self.line).map_err(|error| damaged(self.number, error))
    }

    fn damaged(&self, what: impl std::fmt::Display) -> MoveError {
        damaged(self.number, what)
    }
}

fn damaged(line: u64, what: impl std::fmt::Display) -> MoveError {
    MoveError::Damaged(format!("line {line} {what}"))
}

fn row_bytes(row: &[MovedValue]) -> usize {
    row.iter().map(MovedValue::bytes).sum()
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
