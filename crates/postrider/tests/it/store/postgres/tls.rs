//! Encrypted connections, and what `sslmode` and its relatives make of certificates.

use std::path::PathBuf;

use postrider::store::postgres::PostgresOptions;
use postrider::{PostgresStore, StoreError};
use tempfile::TempDir;
use test_servers::Postgres;
use test_servers::postgres::Tls;

use crate::authority::Authority;

/// Who may come in how: everybody anyhow, some only with a password or a certificate.
const ACCESS: &str = "
hostssl all certified 127.0.0.1/32 cert
host    all scrambled 127.0.0.1/32 scram-sha-256
host    all all       127.0.0.1/32 trust
";

/// A server whose certificate is made out to `localhost`.
struct Server {
    postgres: Postgres,
    folder: TempDir,
}

impl Server {
    fn start() -> Self {
        let (right, wrong, clients) = (Authority::new(), Authority::new(), Authority::new());
        let (certificate, key) = right.issue(&["localhost"], "server");
        let mut postgres = Postgres::start().unwrap();
        let tls =
            Tls { certificate: certificate.pem(), key: key.serialize_pem(), client_authority: clients.pem() };
        postgres.speak_tls(&tls, ACCESS).unwrap();
        let (certificate, key) = clients.issue(&[], "certified");
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("right.crt", right.pem()),
            ("wrong.crt", wrong.pem()),
            ("client.crt", certificate.pem()),
            ("client.key", key.serialize_pem()),
        ];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        Self { postgres, folder }
    }

    /// `FOLDER` stands for where the certificates are.
    fn url(&self, user: &str, host: &str, options: &str) -> String {
        let options = options.replace("FOLDER", &self.folder.path().to_string_lossy());
        format!("postgres://{user}@{host}:{}/postgres?{options}", self.postgres.port())
    }

    /// Whether the connection is encrypted, or why there is none.
    async fn encrypted(&self, user: &str, host: &str, options: &str) -> Result<bool, StoreError> {
        let client = PostgresStore::connect(&self.url(user, host, options)).await?;
        let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(client.query_one(encrypted, &[]).await.unwrap().get(0))
    }

    async fn refusal(&self, user: &str, host: &str, options: &str) -> String {
        match self.encrypted(user, host, options).await {
            Err(error) => error.to_string(),
            Ok(encrypted) => panic!("{options} at {host}: connected, encrypted: {encrypted}"),
        }
    }
}

#[tokio::test]
async fn each_mode_asks_as_much_of_the_server_as_it_says() {
    let server = Server::start();
    let connected = [
        ("127.0.0.1", "sslmode=disable", false),
        ("127.0.0.1", "", true),
        ("127.0.0.1", "sslmode=prefer", true),
        ("127.0.0.1", "sslmode=require", true),
        ("127.0.0.1", "sslmode=require&sslrootcert=FOLDER/right.crt", true),
        ("127.0.0.1", "sslmode=verify-ca&sslrootcert=FOLDER/right.crt", true),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/right.crt", true),
    ];
    for (host, options, encrypted) in connected {
        let found = server.encrypted("postgres", host, options).await;
        assert_eq!(found.unwrap_or_else(|error| panic!("{options}: {error}")), encrypted, "{options}");
    }
    let refused = [
        ("localhost", "sslmode=require&sslrootcert=FOLDER/wrong.crt", "sslrootcert"),
        ("localhost", "sslmode=verify-ca&sslrootcert=FOLDER/wrong.crt", "sslrootcert"),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/wrong.crt", "sslrootcert"),
        ("localhost", "sslmode=verify-full", "sslrootcert"),
        ("127.0.0.1", "sslmode=verify-full&sslrootcert=FOLDER/right.crt", "verify-ca"),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/none.crt", "none.crt"),
        ("localhost", "sslmode=verify-full&sslrootcert=FOLDER/client.key", "no certificate"),
    ];
    for (host, options, advice) in refused {
        let refused = server.encrypted("postgres", host, options).await;
        assert!(
            matches!(&refused, Err(StoreError::Unusable(why)) if why.contains(advice)),
            "{options}: {refused:?}"
        );
    }
}

#[tokio::test]
async fn a_server_without_tls_serves_who_does_not_insist() {
    let url = test_servers::postgres::shared();
    PostgresStore::connect(&format!("{url}?sslmode=prefer")).await.expect("it does not insist");
    let insists = PostgresStore::connect(&format!("{url}?sslmode=require")).await;
    let why = insists.expect_err("there is no TLS").to_string();
    assert!(why.contains("does not support TLS"), "{why}");
}

#[tokio::test]
async fn a_password_can_be_bound_to_the_channel() {
    let server = Server::start();
    server.postgres.query("CREATE ROLE scrambled LOGIN PASSWORD 'geheim'").unwrap();
    let bound = "sslmode=require&channel_binding=require";
    assert!(server.encrypted("scrambled:geheim", "localhost", bound).await.unwrap());
    let why =
        server.refusal("scrambled:geheim", "localhost", "sslmode=disable&channel_binding=require").await;
    assert!(why.contains("channel binding"), "{why}");
    let why = server.refusal("scrambled:falsch", "localhost", bound).await;
    assert!(why.contains("password authentication failed"), "{why}");
}

#[tokio::test]
async fn a_client_can_prove_itself_by_a_certificate() {
    let server = Server::start();
    server.postgres.query("CREATE ROLE certified LOGIN").unwrap();
    let certificate = "sslmode=require&sslcert=FOLDER/client.crt&sslkey=FOLDER/client.key";
    assert!(server.encrypted("certified", "localhost", certificate).await.unwrap());
    let why = server.refusal("certified", "localhost", "sslmode=require").await;
    assert!(why.contains("requires a valid client certificate"), "{why}");
    let why = server.refusal("certified", "localhost", "sslmode=require&sslcert=FOLDER/client.crt").await;
    assert!(why.contains("sslcert and sslkey"), "{why}");
    let none = "sslmode=require&sslcert=FOLDER/client.crt&sslkey=FOLDER/none.key";
    let why = server.refusal("certified", "localhost", none).await;
    assert!(why.contains("none.key"), "{why}");
}

#[tokio::test]
async fn a_whole_node_works_encrypted() {
    let server = Server::start();
    let url = server.url("postgres", "localhost", "sslmode=verify-full&sslrootcert=FOLDER/right.crt");
    let options = PostgresOptions { migrate: true, ..PostgresOptions::new(&url) };
    let store = std::sync::Arc::new(PostgresStore::open(options).await.unwrap());
    let (file_root, receiver) = (server.folder.path().to_owned(), "letters");
    let node = super::post::node_with_files(store.clone(), "one", file_root.clone()).await;
    super::post::create_file_endpoint(&store, "a", receiver).await;
    postrider::Operate::send(&*store, postrider::NewMessage::new("a", "{}")).await.unwrap();
    let letters: PathBuf = file_root.join(receiver);
    super::post::until("a letter", async || std::fs::read(&letters).is_ok_and(|text| !text.is_empty())).await;
    let open = "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
                WHERE application_name = 'postrider' AND NOT ssl";
    assert_eq!(server.postgres.query(open).unwrap(), "0", "each of its connections");
    node.stop().await;
}
