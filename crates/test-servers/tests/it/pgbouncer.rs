use test_servers::{Database, PgBouncer};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

#[tokio::test]
async fn transactions_of_two_clients_share_connections_behind_pgbouncer() {
    let database = Database::empty().await;
    let bouncer = PgBouncer::before(database.port()).expect("a PgBouncer");
    let url = bouncer.url(database.owner(), database.name());
    let (one, other) = (connect(&url).await, connect(&url).await);
    let owner = one_value(&one, "SELECT current_user").await;
    assert_eq!(owner, database.owner());
    let backend = "SELECT pg_backend_pid()";
    assert_eq!(one_value(&one, backend).await, one_value(&other, backend).await);
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

/// By the simple protocol: a prepared statement belongs to a connection, and here that is anybody's.
async fn one_value(client: &Client, sql: &str) -> String {
    let answer = client.simple_query(sql).await.expect("an answer");
    let mut rows = answer.iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    rows.next().expect("a row").to_owned()
}
