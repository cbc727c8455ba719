//! `postrider top`: what flows through a node now, on a full screen.

use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::look::TopSample;
use super::picture::Picture;
use super::screen::{self, Now};
use crate::failure::{CommandError, Exit};
use crate::output::Output;
use crate::remote::Remote;

pub(super) const HELP: &str = "\
Rates and times are over the last five seconds. Endpoints with the most to do stand first; those whose circuit is
open are red. When the node goes away, it is asked again until it is back. q, Esc or Ctrl-C ends it.

Examples:
  postrider top
  POSTRIDER_TOKEN=pr_… postrider top --url https://postrider.example.org";

/// How often a node is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// A node that is quiet for longer is told to be, however long it may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A key is seen within this time after the screen is gone.
const KEY_WAIT: Duration = Duration::from_millis(100);

pub(super) async fn run(remote: Remote, output: Output) -> Result<(), CommandError> {
    if output.json {
        return Err(CommandError::usage("top draws a screen, which is not JSON").hint(
            "`postrider status --json` says what is queued, `postrider tail --json` what happens, GET /metrics all figures",
        ));
    }
    if !output.is_live() {
        return Err(CommandError::usage("top needs a terminal to draw on")
            .hint("`postrider status` says once what is queued, `postrider tail` tells what happens"));
    }
    // What is wrong from the beginning is said in words, not drawn.
    let first = TopSample::take(&remote).await?;
    let picture = Picture::new(remote.to_string(), first);
    // Before there is anything to restore.
    let told_to_end = told_to_end();
    // Restores the terminal also when something panics.
    let terminal = ratatui::try_init()
        .map_err(|error| CommandError::failed(format!("cannot use this terminal: {error}")))?;
    let ended = tokio::select! {
        ended = watch(terminal, picture, remote) => ended,
        () = told_to_end => Ok(()),
    };
    ratatui::restore();
    ended
}

enum News {
    Looked(Result<Box<TopSample>, CommandError>),
    Resized,
    Quit,
}

async fn watch(
    mut terminal: DefaultTerminal,
    mut picture: Picture,
    remote: Remote,
) -> Result<(), CommandError> {
    let (sender, mut news) = mpsc::channel(8);
    let keys = sender.clone();
    std::thread::spawn(move || read_keys(&keys));
    let looking = look_again(remote, sender);
    tokio::pin!(looking);
    loop {
        let now = Now { instant: Instant::now(), timestamp: jiff::Timestamp::now() };
        terminal
            .draw(|frame| screen::draw(frame, &picture, now))
            .map_err(|error| CommandError::failed(format!("cannot draw on this terminal: {error}")))?;
        let told = tokio::select! {
            told = news.recv() => told.unwrap_or(News::Quit),
            () = &mut looking => News::Quit,
        };
        match told {
            News::Quit => return Ok(()),
            News::Resized => {}
            News::Looked(Ok(look)) => picture.take(*look),
            // A node that restarts comes back; a token that is revoked does not.
            News::Looked(Err(failure)) if failure.exit == Exit::Store => picture.miss(failure.error),
            News::Looked(Err(failure)) => return Err(failure),
        }
    }
}

async fn look_again(remote: Remote, news: mpsc::Sender<News>) {
    let quiet = || CommandError::store(format!("{remote} does not answer"));
    loop {
        tokio::time::sleep(INTERVAL).await;
        let looked = tokio::time::timeout(PATIENCE, TopSample::take(&remote)).await;
        let looked = looked.unwrap_or_else(|_| Err(quiet())).map(Box::new);
        if news.send(News::Looked(looked)).await.is_err() {
            return;
        }
    }
}

/// Signals are caught from this call on, so that the terminal is restored however the program ends.
fn told_to_end() -> impl Future<Output = ()> {
    let signals = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
    async move {
        let (Ok(mut terminate), Ok(mut hangup)) = signals else { return std::future::pending().await };
        tokio::select! {
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Ends when the receiver is gone.
fn read_keys(news: &mpsc::Sender<News>) {
    while !news.is_closed() {
        let told = match event::poll(KEY_WAIT).and_then(|is_there| is_there.then(event::read).transpose()) {
            Ok(None) => continue,
            Ok(Some(Event::Key(key))) if is_end(key) => News::Quit,
            Ok(Some(Event::Resize(..))) => News::Resized,
            Ok(Some(_)) => continue,
            // The terminal is gone.
            Err(_) => News::Quit,
        };
        let is_last = matches!(told, News::Quit);
        if news.blocking_send(told).is_err() || is_last {
            return;
        }
    }
}

fn is_end(key: KeyEvent) -> bool {
    let is_interrupt = key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
    let is_quit = matches!(key.code, KeyCode::Char('q') | KeyCode::Esc);
    key.kind == KeyEventKind::Press && (is_quit || is_interrupt)
}
