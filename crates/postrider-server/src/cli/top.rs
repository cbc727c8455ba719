//! `postrider top`: what flows through a node now, on a screen of its own.

use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use tokio::sync::mpsc;

use super::look::Look;
use super::screen::{self, Picture};
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::remote::{Remote, RemoteArgs};

/// How often a node is asked.
const INTERVAL: Duration = Duration::from_secs(1);
/// A key is seen within this time after the screen is gone.
const KEY_WAIT: Duration = Duration::from_millis(100);

#[derive(Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    remote: RemoteArgs,
}

pub(super) async fn run(arguments: TopArgs, output: Output) -> Result<(), Failure> {
    if !output.is_live() {
        return Err(Failure::usage("top needs a terminal to draw on")
            .hint("`postrider status --json` says the same once; `postrider tail` tells what happens"));
    }
    let remote = Remote::new(arguments.remote)?;
    // What is wrong from the beginning is said in words, not drawn.
    let first = Look::take(&remote).await?;
    let address = remote.to_string();
    // Restores the terminal also when something panics.
    let terminal =
        ratatui::try_init().map_err(|error| Failure::failed(format!("cannot use this terminal: {error}")))?;
    let ended = watch(terminal, Picture::new(address, first), remote).await;
    ratatui::restore();
    ended
}

enum News {
    Looked(Result<Look, Failure>),
    Quit,
    Redraw,
}

async fn watch(mut terminal: DefaultTerminal, mut picture: Picture, remote: Remote) -> Result<(), Failure> {
    let (sender, mut news) = mpsc::channel(8);
    let keys = sender.clone();
    std::thread::spawn(move || read_keys(&keys));
    let looking = tokio::spawn(look_again(remote, sender));
    let ended = loop {
        let drawn = terminal.draw(|frame| screen::draw(frame, &picture, jiff::Timestamp::now()));
        if let Err(error) = drawn {
            break Err(Failure::failed(format!("cannot draw on this terminal: {error}")));
        }
        match news.recv().await {
            None | Some(News::Quit) => break Ok(()),
            Some(News::Redraw) => {}
            Some(News::Looked(Ok(look))) => picture.take(look),
            // A node that restarts comes back; a token that is revoked does not.
            Some(News::Looked(Err(failure))) if failure.exit == Exit::Store => picture.miss(failure.error),
            Some(News::Looked(Err(failure))) => break Err(failure),
        }
    };
    looking.abort();
    ended
}

async fn look_again(remote: Remote, news: mpsc::Sender<News>) {
    loop {
        tokio::time::sleep(INTERVAL).await;
        if news.send(News::Looked(Look::take(&remote).await)).await.is_err() {
            return;
        }
    }
}

/// Ends when nobody wants to know any more.
fn read_keys(news: &mpsc::Sender<News>) {
    while !news.is_closed() {
        let told = match event::poll(KEY_WAIT) {
            Ok(false) => continue,
            Ok(true) => event::read(),
            Err(error) => Err(error),
        };
        let told = match told {
            Ok(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                let is_interrupt =
                    key.modifiers.contains(KeyModifiers::CONTROL) && key.code == KeyCode::Char('c');
                match key.code {
                    KeyCode::Char('q') | KeyCode::Esc => News::Quit,
                    _ if is_interrupt => News::Quit,
                    _ => continue,
                }
            }
            Ok(Event::Resize(..)) => News::Redraw,
            Ok(_) => continue,
            Err(_) => News::Quit,
        };
        let is_last = matches!(told, News::Quit);
        if news.blocking_send(told).is_err() || is_last {
            return;
        }
    }
}
