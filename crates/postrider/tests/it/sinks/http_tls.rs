//! Encrypted deliveries, to receivers that can prove who they are.

use std::net::SocketAddr;
use std::sync::Arc;

use postrider::sink::{Environment, Sink, connect};
use postrider::verdict::Class;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use super::gate::Answers;
use super::server::{Server, Speaks, status};
use super::support::*;
use crate::authority::Authority;

impl Authority {
    pub(super) fn acceptor(&self, name: &str, protocols: &[&str]) -> TlsAcceptor {
        self.acceptor_for(WebPkiClientVerifier::no_client_auth(), name, protocols)
    }

    /// Demands certificates that this authority issued.
    pub(super) fn demanding_acceptor(&self, name: &str) -> TlsAcceptor {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        self.acceptor_for(verifier.build().unwrap(), name, &[])
    }

    fn acceptor_for(
        &self,
        clients: Arc<dyn ClientCertVerifier>,
        name: &str,
        protocols: &[&str],
    ) -> TlsAcceptor {
        let (certificate, key) = self.issue(&[name], "");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        TlsAcceptor::from(Arc::new(config))
    }
}

pub(super) async fn serve(acceptor: TlsAcceptor) -> Server {
    Server::start_at(loopback(), Speaks::Http1, Some(acceptor), |_| status(200)).await
}

fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// `receiver.test` is the server, however often it is asked for.
pub(super) fn named_sink(server: &Server, host: &str, more: Value) -> Arc<dyn Sink> {
    let mut config = object(json!({"url": format!("https://{host}:{}/", server.address.port())}));
    config.extend(object(more));
    let answers = Answers::new(&[&["127.0.0.1"][..]; 100]);
    let environment = Environment { resolver: answers, ..open_environment() };
    connect(&endpoint("http", Value::Object(config)), &environment).unwrap()
}

#[tokio::test]
async fn a_certificate_of_the_given_authority_is_trusted() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("receiver.test", &["http/1.1"])).await;
    for host in ["receiver.test", "receiver.test.", "RECEIVER.test"] {
        let sink = named_sink(&server, host, json!({"tls": {"ca": authority.pem()}}));
        for number in 0..3 {
            sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
        }
    }
    assert_eq!((server.received().len(), server.connections()), (9, 3));
}

#[tokio::test]
async fn a_certificate_can_be_made_out_to_an_address() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("127.0.0.1", &[])).await;
    let sink = named_sink(&server, "127.0.0.1", json!({"tls": {"ca": authority.pem()}}));
    sink.deliver(&delivery(message(1, "{}"))).await.unwrap();
}

#[tokio::test]
async fn a_receiver_that_demands_a_certificate_gets_that_of_the_endpoint() {
    let authority = Authority::new();
    let server = serve(authority.demanding_acceptor("receiver.test")).await;
    let (certificate, key) = authority.issue(&[], "postrider");
    let tls = |key: &str| json!({"tls": {"ca": authority.pem(), "client_cert": certificate.pem(), "client_key": key}});
    let sink = named_sink(&server, "receiver.test", tls(&key.serialize_pem()));
    for number in 0..3 {
        sink.deliver(&delivery(message(number, "{}"))).await.unwrap();
    }
    assert_eq!(server.received().len(), 3);
    let without = named_sink(&server, "receiver.test", json!({"tls": {"ca": authority.pem()}}));
    let failure = without.deliver(&delivery(message(9, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable);
    assert_eq!(server.received().len(), 3);

    let secrets = tempfile::tempdir().unwrap();
    std::fs::write(secrets.path().join("key"), key.serialize_pem()).unwrap();
    let url = json!({"url": format!("https://receiver.test:{}/", server.address.port())});
    let mut config = object(tls("file:key"));
    config.extend(object(url));
    let environment = Environment {
        resolver: Answers::new(&[&["127.0.0.1"][..]; 100]),
        secrets_dir: Some(secrets.path().to_owned()),
        ..open_environment()
    };
    let sink = connect(&endpoint("http", Value::Object(config.clone())), &environment).unwrap();
    sink.deliver(&delivery(message(4, "{}"))).await.unwrap();

    std::fs::write(secrets.path().join("key"), "no key").unwrap();
    let connected = |config: &Value| connect(&endpoint("http", config.clone()), &environment);
    let config = Value::Object(config);
    let failure = connected(&config).err().unwrap().failed();
    assert_eq!(failure.class, Class::Retryable, "the node lacks it");
    assert_says(&failure, "the secret file:key must be PEM text with a private key");

    let (_, other_key) = authority.issue(&[], "other");
    std::fs::write(secrets.path().join("key"), other_key.serialize_pem()).unwrap();
    let failure = connected(&config).err().unwrap().failed();
    assert_eq!(failure.class, Class::Retryable, "the certificate may follow");
    assert_says(&failure, "config.tls.client_cert: cannot be used");

    let config = json!({"url": "https://receiver.test/", "tls": tls(&other_key.serialize_pem())["tls"]});
    let failure = connect(&endpoint("http", config), &environment).err().unwrap().failed();
    assert_eq!(failure.class, Class::Permanent);
    assert_says(&failure, "config.tls.client_cert: cannot be used");
}

#[tokio::test]
async fn another_authority_or_another_name_is_refused_before_anything_is_sent() {
    let authority = Authority::new();
    let server = serve(authority.acceptor("receiver.test", &[])).await;
    let sinks = [
        named_sink(&server, "receiver.test", json!({"tls": {"ca": Authority::new().pem()}})),
        named_sink(&server, "other.test", json!({"tls": {"ca": authority.pem()}})),
    ];
    for sink in sinks {
        let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
        assert_eq!(failure.class, Class::Retryable);
        assert_says(&failure, "certificate");
    }
    assert!(server.received().is_empty());
}

#[tokio::test]
async fn a_receiver_that_does_not_speak_tls_is_retryable() {
    let server = Server::ok().await;
    let sink = named_sink(&server, "receiver.test", json!({"tls": {"ca": Authority::new().pem()}}));
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable);
    assert_says(&failure, "TLS handshake with receiver.test failed");
}

#[tokio::test]
async fn a_redirect_never_leaves_encryption() {
    let authority = Authority::new();
    let plain = Server::ok().await;
    let location = plain.url("/");
    let redirect = move |_: &super::server::Received| {
        let mut response = status(307);
        response.headers_mut().insert("location", location.parse().unwrap());
        response
    };
    let acceptor = authority.acceptor("receiver.test", &[]);
    let server = Server::start_at(loopback(), Speaks::Http1, Some(acceptor), redirect).await;
    let sink =
        named_sink(&server, "receiver.test", json!({"tls": {"ca": authority.pem()}, "max_redirects": 5}));
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Permanent);
    assert_says(&failure, "unencrypted");
    assert!(plain.received().is_empty());
}

#[tokio::test]
async fn the_certificate_of_the_endpoint_is_shown_to_its_own_origin_only() {
    let authority = Authority::new();
    let stranger = serve(authority.demanding_acceptor("stranger.test")).await;
    let location = format!("https://stranger.test:{}/", stranger.address.port());
    let redirect = move |_: &super::server::Received| {
        let mut response = status(307);
        response.headers_mut().insert("location", location.parse().unwrap());
        response
    };
    let acceptor = authority.demanding_acceptor("receiver.test");
    let server = Server::start_at(loopback(), Speaks::Http1, Some(acceptor), redirect).await;
    let (certificate, key) = authority.issue(&[], "postrider");
    let tls =
        json!({"ca": authority.pem(), "client_cert": certificate.pem(), "client_key": key.serialize_pem()});
    let sink = named_sink(&server, "receiver.test", json!({"tls": tls, "max_redirects": 1}));
    let failure = sink.deliver(&delivery(message(1, "{}"))).await.failed();
    assert_eq!(failure.class, Class::Retryable);
    assert_eq!((server.received().len(), stranger.received().len()), (1, 0));
}
