//! Receivers that do not play by the rules cost an attempt at most.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postrider::message::Message;
use postrider::sink::{Delivery, Environment, Kept, Sink, connect};
use postrider::verdict::{Class, Failure};
use serde_json::json;
use tokio::sync::Notify;

use super::raw::RawServer;
use super::support::*;

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";

/// A test that hangs is a promise broken.
const PATIENCE: Duration = Duration::from_secs(20);

async fn failure_of(server: &RawServer) -> Failure {
    let sink = plain_sink(&server.url());
    let sent = delivery(message(1, "{}"));
    tokio::time::timeout(PATIENCE, sink.deliver(&sent)).await.unwrap().failed()
}

#[tokio::test]
async fn answers_that_are_not_http_are_retryable() {
    let cases: [(&[u8], &str); 8] = [
        (b"", "the connection was closed before an answer came"),
        (b"HTTP/1.1 200", "the connection was closed before an answer came"),
        (b"HTTP/1.1 200 OK\r\ncontent-le", "the connection was closed before an answer came"),
        (b"220 smtp.example ESMTP\r\n", "the answer is not valid HTTP"),
        (b"\x16\x03\x01\x02\x00\x01", "the answer is not valid HTTP"),
        (b"HTTP/1.1 999999 X\r\n\r\n", "the answer is not valid HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n", "the answer is not valid HTTP"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "the answer is not valid HTTP",
        ),
    ];
    for (bytes, text) in cases {
        let server = RawServer::start(move |mut peer, _| async move {
            peer.request().await;
            peer.send(bytes).await;
        })
        .await;
        let failure = failure_of(&server).await;
        assert_eq!(failure.class, Class::Retryable);
        assert_says(&failure, text);
    }
}

#[tokio::test]
async fn a_connection_closed_without_reading_is_retryable() {
    let server = RawServer::start(|_, _| async {}).await;
    assert_eq!(failure_of(&server).await.class, Class::Retryable);
}

#[tokio::test]
async fn endless_headers_end_the_attempt() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\n").await;
        while peer.send(&b"x-more: and more and more and more and more\r\n".repeat(100)).await {}
    })
    .await;
    let failure = failure_of(&server).await;
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "headers of the answer are too large");
}

#[tokio::test]
async fn one_endless_header_ends_the_attempt() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\nx: ").await;
        while peer.send(&[b'x'; 4096]).await {}
    })
    .await;
    assert_says(&failure_of(&server).await, "headers of the answer are too large");
}

#[tokio::test]
async fn an_endless_body_does_not_take_back_a_2xx() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while peer.send(&[b'x'; 4096]).await {}
    })
    .await;
    let sink = plain_sink(&server.url());
    for number in 0..3 {
        let receipt = sink.deliver(&capturing(message(number, "{}"), 100)).await.unwrap();
        assert_eq!(receipt.body.unwrap().len(), 100);
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
}

#[tokio::test]
async fn a_body_that_drips_does_not_take_back_a_2xx() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nxyz").await;
        peer.until_closed().await;
    })
    .await;
    let sink = http_sink(json!({"url": server.url(), "timeout": 0.3}));
    let sent = capturing(message(1, "{}"), 100);
    let receipt =
        tokio::time::timeout(Duration::from_millis(300), sink.deliver(&sent)).await.unwrap().unwrap();
    assert_eq!(receipt.body.unwrap(), "xyz");
}

#[tokio::test]
async fn a_body_that_drips_is_left_in_time_for_the_message_s_own_timeout() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 410 Gone\r\ncontent-length: 1000\r\n\r\n").await;
        peer.until_closed().await;
    })
    .await;
    let sent = delivery(Message { options: object(json!({"timeout": 0.3})), ..message(1, "{}") });
    let sink = plain_sink(&server.url());
    let failure =
        tokio::time::timeout(Duration::from_millis(300), sink.deliver(&sent)).await.unwrap().failed();
    assert_eq!(failure.class, Class::Gone);
}

#[tokio::test]
async fn a_body_cut_short_does_not_take_back_a_2xx() {
    let server = RawServer::start(|mut peer, _| async move {
        peer.request().await;
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nxyz").await;
    })
    .await;
    let sink = plain_sink(&server.url());
    let receipt = sink.deliver(&capturing(message(1, "{}"), 100)).await.unwrap();
    assert_eq!(receipt.body.unwrap(), "xyz");
}

#[tokio::test]
async fn provisional_answers_are_passed_over() {
    let server = RawServer::answering(
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    )
    .await;
    let sink = plain_sink(&server.url());
    for number in 0..3 {
        assert_eq!(sink.deliver(&delivery(message(number, "{}"))).await.unwrap().status, Some(204));
    }
}

#[tokio::test]
async fn chunked_answers_are_read_to_their_end() {
    let server = RawServer::answering(
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n2;x=y\r\nef\r\n0\r\nx-trailer: 1\r\n\r\n",
    )
    .await;
    let sink = plain_sink(&server.url());
    for number in 0..3 {
        let receipt = sink.deliver(&capturing(message(number, "{}"), 100)).await.unwrap();
        assert_eq!(receipt.body.unwrap(), "abcdef");
    }
}

#[tokio::test]
async fn switching_protocols_is_not_delivery() {
    let server = RawServer::answering(
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    )
    .await;
    assert_eq!(failure_of(&server).await.class, Class::Retryable);
}

#[tokio::test]
async fn an_answer_before_the_payload_was_read_is_judged() {
    let server = RawServer::start(|mut peer, number| async move {
        if number == 0 {
            peer.stream.readable().await.unwrap();
            peer.send(b"HTTP/1.1 413 Content Too Large\r\ncontent-length: 0\r\n\r\n").await;
            std::future::pending::<()>().await;
        }
        while peer.request().await.is_some() {
            peer.send(OK).await;
        }
    })
    .await;
    let sink = plain_sink(&server.url());
    let large = delivery(message(1, vec![b'x'; 20_000_000]));
    let failure = tokio::time::timeout(PATIENCE, sink.deliver(&large)).await.unwrap().failed();
    assert_eq!((failure.class, failure.status), (Class::Permanent, Some(413)));
    tokio::time::timeout(PATIENCE, sink.deliver(&delivery(message(2, "{}")))).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_delivery_closes_its_connection_and_leaves_the_sink_usable() {
    let (arrived, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = RawServer::start({
        let (arrived, closed) = (Arc::clone(&arrived), Arc::clone(&closed));
        move |mut peer, number| {
            let (arrived, closed) = (Arc::clone(&arrived), Arc::clone(&closed));
            async move {
                peer.request().await;
                if number == 0 {
                    arrived.notify_one();
                    peer.until_closed().await;
                    closed.notify_one();
                } else {
                    peer.send(OK).await;
                }
            }
        }
    })
    .await;
    let sink = plain_sink(&server.url());
    let sent = delivery(message(1, "{}"));
    tokio::select! {
        _ = sink.deliver(&sent) => panic!("there was no answer"),
        () = arrived.notified() => {}
    }
    tokio::time::timeout(PATIENCE, closed.notified()).await.unwrap();
    sink.deliver(&sent).await.unwrap();
}

#[tokio::test]
async fn a_dropped_delivery_stops_sending_to_a_receiver_that_does_not_read() {
    // More than the buffers of both ends can hold.
    const PAYLOAD: usize = 100_000_000;
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let read = Arc::new(Mutex::new(None));
    let finished = Arc::new(Notify::new());
    let server = RawServer::start({
        let (begun, dropped) = (Arc::clone(&begun), Arc::clone(&dropped));
        let (read, finished) = (Arc::clone(&read), Arc::clone(&finished));
        move |mut peer, _| {
            let (begun, dropped) = (Arc::clone(&begun), Arc::clone(&dropped));
            let (read, finished) = (Arc::clone(&read), Arc::clone(&finished));
            async move {
                peer.stream.readable().await.unwrap();
                begun.notify_one();
                dropped.notified().await;
                *read.lock().unwrap() = Some(peer.until_closed().await);
                finished.notify_one();
            }
        }
    })
    .await;
    let sink = plain_sink(&server.url());
    let sent = delivery(message(1, vec![b'x'; PAYLOAD]));
    tokio::select! {
        _ = sink.deliver(&sent) => panic!("there was no answer"),
        () = begun.notified() => dropped.notify_one(),
    }
    tokio::time::timeout(PATIENCE, finished.notified()).await.unwrap();
    assert!(read.lock().unwrap().unwrap() < PAYLOAD);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_closed_while_idle_never_makes_a_message_arrive_twice_in_one_attempt() {
    let seen: Arc<Mutex<HashMap<String, usize>>> = Arc::default();
    // Answers once, as if it kept the connection, and closes it at once.
    let server = RawServer::start({
        let seen = Arc::clone(&seen);
        move |mut peer, _| {
            let seen = Arc::clone(&seen);
            async move {
                if let Some(request) = peer.request().await {
                    let attempt = request.lines().find(|line| line.starts_with("postrider-attempt")).unwrap();
                    *seen.lock().unwrap().entry(attempt.to_owned()).or_default() += 1;
                    peer.send(OK).await;
                }
            }
        }
    })
    .await;
    let sink = plain_sink(&server.url());
    let mut delivered = 0;
    for attempt in 1..=200 {
        match sink.deliver(&Delivery { attempt, ..delivery(message(1, "{}")) }).await {
            Ok(_) => delivered += 1,
            Err(lost) => assert_eq!(lost.clone().failed().class, Class::Retryable, "{lost:?}"),
        }
    }
    let seen = seen.lock().unwrap();
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(delivered >= 1 && seen.len() >= delivered);
}

const AT_ONCE: usize = 3;

/// Answers when so many wait for it at once; tells which connections are closed.
async fn server_of_three() -> (RawServer, tokio::sync::mpsc::UnboundedReceiver<()>) {
    let all_here = Arc::new(tokio::sync::Barrier::new(AT_ONCE));
    let (closed, closing) = tokio::sync::mpsc::unbounded_channel();
    let server = RawServer::start(move |mut peer, _| {
        let (all_here, closed) = (Arc::clone(&all_here), closed.clone());
        async move {
            peer.request().await;
            all_here.wait().await;
            peer.send(OK).await;
            peer.until_closed().await;
            closed.send(()).unwrap();
        }
    })
    .await;
    (server, closing)
}

async fn deliver_three(sink: &Arc<dyn Sink>) {
    let sent = [1, 2, 3].map(|number| delivery(message(number, "{}")));
    for receipt in futures_util::future::join_all(sent.iter().map(|sent| sink.deliver(sent))).await {
        receipt.unwrap();
    }
}

#[tokio::test]
async fn no_more_connections_stay_open_than_the_node_may_keep() {
    let (server, mut closing) = server_of_three().await;
    let environment = Environment { kept: Arc::new(Kept::up_to(1)), ..open_environment() };
    let sink = connect(&endpoint("http", json!({"url": server.url()})), &environment).unwrap();
    deliver_three(&sink).await;
    for _ in 1..AT_ONCE {
        tokio::time::timeout(PATIENCE, closing.recv()).await.expect("it is closed").unwrap();
    }
    assert!(closing.try_recv().is_err(), "one is kept");
}

#[tokio::test]
async fn idle_connections_are_closed_after_a_while_though_nobody_asks_for_one() {
    let (server, mut closing) = server_of_three().await;
    let sink = plain_sink(&server.url());
    deliver_three(&sink).await;
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(20)).await;
    tokio::time::resume();
    assert!(closing.try_recv().is_err(), "after twenty seconds they may still be used");
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(11)).await;
    tokio::time::resume();
    for _ in 0..AT_ONCE {
        tokio::time::timeout(PATIENCE, closing.recv()).await.expect("it is closed").unwrap();
    }
}

#[tokio::test]
async fn a_second_answer_nobody_asked_for_is_never_taken_for_the_next_message() {
    let server = RawServer::start(|mut peer, number| async move {
        while peer.request().await.is_some() {
            if number == 0 {
                peer.send(&[OK, OK].concat()).await;
            } else {
                peer.send(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
    })
    .await;
    let sink = plain_sink(&server.url());
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
    assert!(sink.deliver(&delivery(message(2, "{}"))).await.is_err());
}
