//! What the log says of a panic: where it was, and its text only where that is a constant. A text that is made of
//! values may have anything in it: a payload, a secret.

use std::panic::PanicHookInfo;

const WITHHELD: &str = "(its text is made of values, and not told)";

pub(crate) fn to_log() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map_or("an unknown place".to_owned(), ToString::to_string);
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        tracing::error!(text = text(panic), %at, %thread, "A bug: this part of the program panicked");
    }));
}

fn text(panic: &PanicHookInfo<'_>) -> &'static str {
    panic.payload().downcast_ref::<&'static str>().copied().unwrap_or(WITHHELD)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("writing does not panic").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_panic_is_logged_without_the_values_in_its_text() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
        let before = std::panic::take_hook();
        to_log();
        tracing::subscriber::with_default(subscriber, || {
            let secret = String::from("leak-panic-18");
            let _ = std::panic::catch_unwind(|| panic!("cannot use {secret}"));
            let _ = std::panic::catch_unwind(|| {
                "x".parse::<u8>().map_err(|_| &secret).expect("a secret that is none")
            });
            let _ = std::panic::catch_unwind(|| panic!("a constant"));
        });
        std::panic::set_hook(before);
        let log = String::from_utf8(log.0.lock().expect("writing does not panic").clone()).expect("text");
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 3, "{log}");
        assert!(lines.iter().all(|line| line.contains("panicked") && line.contains("panics.rs:")), "{log}");
        assert!(lines[2].contains("a constant") && !log.contains("leak-panic-18"), "{log}");
    }
}
