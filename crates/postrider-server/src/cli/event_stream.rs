//! Server-sent events, taken out of bytes as they come.

/// No event of a node is longer: a server that sends more without an end is not a node.
const EVENT_BYTES_MAX: usize = 4 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct ServerEvent {
    pub(super) kind: String,
    pub(super) data: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLong;

#[derive(Default)]
pub(super) struct EventStream {
    /// The beginning of a line that is not complete.
    rest: Vec<u8>,
    kind: String,
    data: String,
}

impl EventStream {
    /// The events that end within these bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<Vec<ServerEvent>, TooLong> {
        let mut events = Vec::new();
        self.rest.extend_from_slice(bytes);
        let rest = std::mem::take(&mut self.rest);
        let mut lines = rest.split(|byte| *byte == b'\n');
        self.rest = lines.next_back().unwrap_or_default().to_vec();
        for line in lines {
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
            events.extend(self.line(&line));
        }
        if self.rest.len() + self.data.len() > EVENT_BYTES_MAX {
            return Err(TooLong);
        }
        Ok(events)
    }

    /// An empty line ends an event; one that begins with a colon is a comment.
    fn line(&mut self, line: &str) -> Option<ServerEvent> {
        if line.is_empty() {
            let (kind, data) = (std::mem::take(&mut self.kind), std::mem::take(&mut self.data));
            return (!data.is_empty()).then_some(ServerEvent { kind, data });
        }
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "event" => self.kind = value.to_owned(),
            "data" if self.data.is_empty() => self.data = value.to_owned(),
            "data" => self.data.extend(["\n", value]),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_the_same_however_the_bytes_are_cut() {
        let text = ": listening\n\nevent: attempt\ndata: {\"a\":\"é\"}\n\nevent: lost\r\ndata: 1\r\ndata: 2\r\n\r\nevent: x\n\ndata: open";
        let event = |kind: &str, data: &str| ServerEvent { kind: kind.to_owned(), data: data.to_owned() };
        let expected = [event("attempt", "{\"a\":\"é\"}"), event("lost", "1\n2")];
        for size in 1..=text.len() {
            let mut stream = EventStream::default();
            let cut = text.as_bytes().chunks(size);
            let found: Vec<ServerEvent> = cut.flat_map(|bytes| stream.take(bytes).expect("short")).collect();
            assert_eq!(found, expected, "{size} bytes at a time");
        }
    }

    #[test]
    fn an_event_without_an_end_is_given_up() {
        let mut stream = EventStream::default();
        let line = format!("data: {}\n", "x".repeat(1 << 20));
        let all: Result<Vec<_>, TooLong> = (0..5).map(|_| stream.take(line.as_bytes())).collect();
        assert_eq!(all, Err(TooLong));
    }
}
