//! No delivery reaches the node's own networks unless its operator says so.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use postrider::sink::{Environment, Resolve, Resource, Sink, Undelivered, connect};
use postrider::verdict::{Class, Failure};
use rustix::io::Errno;
use serde_json::json;

use super::raw::RawServer;
use super::server::Server;
use super::support::*;

/// Gives the next prepared answer, and errors when there is none left.
#[derive(Default, Debug)]
pub(super) struct Answers {
    prepared: Mutex<VecDeque<Vec<IpAddr>>>,
    asked: Mutex<Vec<String>>,
}

impl Answers {
    pub(super) fn new(answers: &[&[&str]]) -> Arc<Self> {
        let parsed = answers.iter().map(|answer| answer.iter().map(|text| text.parse().unwrap()).collect());
        Arc::new(Self { prepared: Mutex::new(parsed.collect()), asked: Mutex::default() })
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

#[async_trait]
impl Resolve for Answers {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().unwrap().push(name.to_owned());
        self.prepared.lock().unwrap().pop_front().ok_or_else(|| io::Error::other("no such host"))
    }
}

fn closed() -> Environment {
    Environment::default()
}

fn allowing(net: &str) -> Environment {
    Environment { allow_nets: vec![net.parse().unwrap()], ..Environment::default() }
}

fn resolved(url: &str, environment: &Environment, answers: &Arc<Answers>) -> Arc<dyn Sink> {
    let environment =
        Environment { resolver: Arc::clone(answers) as Arc<dyn Resolve>, ..environment.clone() };
    connect(&endpoint("http", json!({"url": url})), &environment).unwrap()
}

async fn deliver(sink: &Arc<dyn Sink>) -> Result<(), Undelivered> {
    sink.deliver(&delivery(message(1, "{}"))).await.map(drop)
}

#[track_caller]
fn assert_refused(failure: &Failure, host: &str) {
    assert_eq!(failure.class, Class::Permanent, "{}", failure.error);
    assert_says(failure, host);
    assert_says(failure, "--allow-internal");
    assert_says(failure, "--allow-net");
}

#[tokio::test]
async fn internal_addresses_are_refused_in_every_spelling() {
    // Nothing may connect to it.
    let server = RawServer::start(|_, _| async { panic!("a refused address was connected to") }).await;
    let port = server.address.port();
    let spellings = [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "0.0.0.0",
        "0",
        "[::]",
        "10.0.0.1",
        "192.168.1.1",
        "172.16.0.1",
        "169.254.169.254",
        "[fd00:ec2::254]",
        "[fe80::1]",
        "[fec0::1]",
        "[fc00::1]",
        "[ff02::1]",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "198.18.0.1",
        "①②⑦.⓪.⓪.①",
        "%31%32%37.0.0.1",
    ];
    for spelling in spellings {
        let url = format!("http://{spelling}:{port}/");
        let sink = connect(&endpoint("http", json!({"url": url})), &closed()).unwrap();
        let failure = deliver(&sink).await.failed();
        assert_refused(&failure, "is an internal address");
    }
}

#[tokio::test]
async fn a_name_is_judged_by_its_addresses() {
    for name in ["localhost", "localhost.", "internal.example", "INTERNAL.example"] {
        let answers = Answers::new(&[&["127.0.0.1"]]);
        let failure = deliver(&resolved(&format!("http://{name}/"), &closed(), &answers)).await.failed();
        assert_refused(&failure, &format!("{} (127.0.0.1)", name.to_lowercase()));
    }
}

#[tokio::test]
async fn one_internal_address_among_public_ones_refuses_the_name() {
    for addresses in
        [&["93.184.216.34", "10.0.0.1"][..], &["10.0.0.1", "93.184.216.34"], &["2606:4700::1", "::1"]]
    {
        let answers = Answers::new(&[addresses]);
        let failure = deliver(&resolved("http://mixed.example/", &closed(), &answers)).await.failed();
        assert_refused(&failure, "mixed.example");
    }
}

#[tokio::test]
async fn the_address_that_was_checked_is_the_one_connected_to() {
    let server = Server::ok().await;
    let url = format!("http://rebinding.example:{}/", server.address.port());
    // A second look at the name would find an address that is refused.
    let answers = Answers::new(&[&["127.0.0.1"], &["10.0.0.1"]]);
    let sink = resolved(&url, &allowing("127.0.0.1/32"), &answers);
    for _ in 0..3 {
        deliver(&sink).await.unwrap();
    }
    assert_eq!(answers.asked(), ["rebinding.example"], "resolved once for all that goes over one connection");
    server.stop().await;
    assert_refused(&deliver(&sink).await.failed(), "rebinding.example (10.0.0.1)");
    assert_eq!(answers.asked().len(), 2);
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_retryable() {
    let sink = resolved("http://nowhere.example/", &closed(), &Answers::new(&[]));
    let failure = deliver(&sink).await.failed();
    assert_eq!(failure.class, Class::Retryable);
    assert_eq!(failure.error, "cannot resolve nowhere.example: no such host");
    let sink = resolved("http://empty.example/", &closed(), &Answers::new(&[&[]]));
    let failure = deliver(&sink).await.failed();
    assert_eq!(
        (failure.class, failure.error.as_str()),
        (Class::Retryable, "cannot resolve empty.example: it has no address")
    );
}

#[tokio::test]
async fn an_allowed_network_opens_that_network_only() {
    let server = Server::ok().await;
    let port = server.address.port();
    let deliver_to = async |host: &str, environment: &Environment| {
        let url = format!("http://{host}:{port}/");
        deliver(&connect(&endpoint("http", json!({"url": url})), environment).unwrap()).await
    };
    deliver_to("127.0.0.1", &allowing("127.0.0.0/8")).await.unwrap();
    deliver_to("127.0.0.1", &open_environment()).await.unwrap();
    deliver_to("[::ffff:127.0.0.1]", &allowing("127.0.0.1/32")).await.unwrap();
    assert_refused(&deliver_to("127.0.0.1", &allowing("10.0.0.0/8")).await.failed(), "127.0.0.1");
    assert_refused(&deliver_to("[::1]", &allowing("127.0.0.0/8")).await.failed(), "::1");
}

#[tokio::test]
async fn the_next_address_is_tried_when_one_does_not_answer() {
    let server = Server::ok().await;
    let url = format!("http://several.example:{}/", server.address.port());
    // Nothing listens on the others.
    let answers = Answers::new(&[&["127.9.9.9", "::1", "127.0.0.1"]]);
    deliver(&resolved(&url, &open_environment(), &answers)).await.unwrap();
}

#[tokio::test]
async fn a_refused_connection_names_the_address() {
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    let failure = deliver(&plain_sink(&format!("http://{address}/"))).await.failed();
    assert_eq!(
        (failure.class, failure.error),
        (Class::Retryable, format!("connection refused by {address}"))
    );
}

/// The machine has no descriptor to ask with.
#[derive(Debug)]
struct Short;

#[async_trait]
impl Resolve for Short {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        Err(Errno::MFILE.into())
    }
}

#[tokio::test]
async fn what_this_node_lacks_is_not_charged_to_the_receiver() {
    let environment = Environment { resolver: Arc::new(Short), ..closed() };
    let sink = connect(&endpoint("http", json!({"url": "http://any.example/"})), &environment).unwrap();
    match deliver(&sink).await {
        Err(Undelivered::Short(shortage)) => {
            assert_eq!(shortage.of, Resource::OpenFiles);
            assert!(shortage.error.contains("any.example"), "{shortage}");
        }
        other => panic!("{other:?}"),
    }
}

/// Never answers.
#[derive(Debug)]
struct Silent;

#[async_trait]
impl Resolve for Silent {
    async fn resolve(&self, _: &str) -> io::Result<Vec<IpAddr>> {
        std::future::pending().await
    }
}

#[tokio::test(start_paused = true)]
async fn connecting_takes_no_longer_than_its_timeout() {
    let config = json!({"url": "http://silent.example/", "connect_timeout": 2.5});
    let environment = Environment { resolver: Arc::new(Silent), ..closed() };
    let sink = connect(&endpoint("http", config), &environment).unwrap();
    let begin = tokio::time::Instant::now();
    let failure = deliver(&sink).await.failed();
    assert_eq!(begin.elapsed().as_millis(), 2500);
    assert_eq!(
        (failure.class, failure.error.as_str()),
        (Class::Retryable, "timed out connecting after 2.5 s")
    );
}
