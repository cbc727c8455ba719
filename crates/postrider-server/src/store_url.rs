//! Where a store is, as people write it, and how a command opens it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postrider::store::Keyring;
use postrider::store::postgres::PostgresOptions;
use postrider::store::sqlite::SqliteOptions;
use postrider::{Operate, PostgresStore, SqliteStore, Store};

use crate::failure::CommandError;
use crate::postgres_url::PostgresUrl;

pub(crate) const STORE_DEFAULT: &str = "sqlite:postrider.db";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    Sqlite(PathBuf),
    Postgres(PostgresUrl),
}

/// What a node needs of its store: the engine claims, the API sends and looks, its gate knows the tokens.
pub(crate) struct NodeStore {
    pub(crate) engine: Arc<dyn Store>,
    pub(crate) api: Arc<dyn Operate>,
    pub(crate) keyring: Arc<dyn Keyring>,
}

impl NodeStore {
    fn of<S: Store + Operate + Keyring>(store: S) -> Self {
        let store = Arc::new(store);
        Self { engine: store.clone(), api: store.clone(), keyring: store }
    }
}

impl StoreUrl {
    pub(crate) fn or_default(text: Option<&str>) -> Result<Self, CommandError> {
        Self::parse(text.unwrap_or(STORE_DEFAULT))
    }

    fn parse(text: &str) -> Result<Self, CommandError> {
        let refused = |rule: String| CommandError::usage(format!("store: {rule}"));
        match text.split_once(':') {
            Some(("sqlite", path)) => {
                let path = path.strip_prefix("//").unwrap_or(path);
                if path.is_empty() || path.starts_with(":memory:") {
                    return Err(refused(format!("{text:?} must name a file, as sqlite:postrider.db")));
                }
                Ok(Self::Sqlite(path.into()))
            }
            Some(("postgres" | "postgresql", _)) => PostgresUrl::parse(text).map(Self::Postgres),
            _ => Err(refused(format!(
                "{:?} must be written as sqlite:PATH, such as sqlite:postrider.db, or as \
                 postgres://user:password@host/database",
                without_secrets(text)
            ))),
        }
    }

    /// As it was written, password and all.
    pub(crate) fn secret_text(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(url) => url.as_str().to_owned(),
        }
    }

    /// The file of an embedded store.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            Self::Sqlite(path) => Some(path),
            Self::Postgres(_) => None,
        }
    }

    /// False when opening it is going to make it.
    pub(crate) async fn exists(&self) -> Result<bool, CommandError> {
        match self {
            Self::Sqlite(path) => is_store(path).await,
            Self::Postgres(url) => Ok(PostgresStore::is_installed(url.as_str()).await?),
        }
    }

    /// For a node. A missing file is created; a database gets its schema only when that is asked for.
    pub(crate) async fn open_node(&self, migrate: bool) -> Result<NodeStore, CommandError> {
        match self {
            Self::Sqlite(path) => {
                let options = SqliteOptions { migrate, ..SqliteOptions::node(path) };
                open_sqlite(options).await.map(NodeStore::of)
            }
            Self::Postgres(url) => open_postgres(url, migrate).await.map(NodeStore::of),
        }
    }

    /// For a command beside a running node. A mistyped path must not leave a new store behind, nor tables in another program's file.
    pub(crate) async fn open_tool(&self) -> Result<Arc<dyn Operate>, CommandError> {
        match self {
            Self::Sqlite(path) => {
                must_be_store(path).await?;
                Ok(Arc::new(open_sqlite(SqliteOptions::tool(path)).await?))
            }
            Self::Postgres(url) => Ok(Arc::new(open_postgres(url, false).await?)),
        }
    }

    /// For an export: no node runs on the file meanwhile.
    pub(crate) async fn open_export(&self) -> Result<SqliteStore, CommandError> {
        match self {
            Self::Sqlite(path) => {
                must_be_store(path).await?;
                open_sqlite(SqliteOptions::node(path)).await
            }
            Self::Postgres(_) => Err(CommandError::usage("only a SQLite store can be exported: --store sqlite:PATH")
                .hint("to copy a PostgreSQL store, use pg_dump; then `postrider migrate --new-store-id` on the copy")),
        }
    }

    /// What a store can be imported into.
    pub(crate) fn import_target(&self) -> Result<&PostgresUrl, CommandError> {
        match self {
            Self::Sqlite(_) => Err(CommandError::usage(
                "a store can only be imported into PostgreSQL: --store postgres://user:password@host/database",
            )),
            Self::Postgres(url) => Ok(url),
        }
    }

    /// Creates a missing store, brings an older one up to date. Returns the statements that are left for an administrator
    /// who may make roles.
    pub(crate) async fn migrate(&self) -> Result<Vec<String>, CommandError> {
        match self {
            Self::Sqlite(path) => {
                let options = SqliteOptions { migrate: true, ..SqliteOptions::tool(path) };
                open_sqlite(options).await.map(|_| Vec::new())
            }
            Self::Postgres(url) => Ok(PostgresStore::migrate(url.as_str()).await?),
        }
    }

    /// The same with a new store id: no node may run meanwhile, or its messages would change their ids between
    /// attempts.
    pub(crate) async fn migrate_with_new_id(&self) -> Result<Vec<String>, CommandError> {
        match self {
            Self::Sqlite(path) => {
                let options = SqliteOptions { migrate: true, ..SqliteOptions::node(path) };
                open_sqlite(options).await?.renew_name().await?;
                Ok(Vec::new())
            }
            Self::Postgres(url) => {
                let left = self.migrate().await?;
                open_postgres(url, false).await?.renew_name().await?;
                Ok(left)
            }
        }
    }
}

/// A mistyped address may hold a password.
fn without_secrets(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, _)) => format!("{scheme}://…"),
        None => text.to_owned(),
    }
}

async fn must_be_store(path: &Path) -> Result<(), CommandError> {
    if is_store(path).await? {
        return Ok(());
    }
    let missing = match path.exists() {
        false => format!("there is no store at {}", path.display()),
        true => format!("{} has no store of Postrider in it", path.display()),
    };
    Err(CommandError::store(missing)
        .hint("`postrider serve` and `postrider migrate` create one; --store says where it is"))
}

async fn is_store(path: &Path) -> Result<bool, CommandError> {
    let path = path.to_owned();
    let looked = tokio::task::spawn_blocking(move || SqliteStore::is_installed(&path)).await;
    Ok(looked.expect("looking at a file does not panic")?)
}

async fn open_sqlite(options: SqliteOptions) -> Result<SqliteStore, CommandError> {
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(options)).await;
    Ok(opened.expect("opening a store does not panic")?)
}

async fn open_postgres(url: &PostgresUrl, migrate: bool) -> Result<PostgresStore, CommandError> {
    Ok(PostgresStore::open(PostgresOptions { migrate, ..PostgresOptions::new(url.as_str()) }).await?)
}

impl fmt::Display for StoreUrl {
    /// Without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => url.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_databases_are_stores() {
        let path = |text| StoreUrl::parse(text).expect("right").path().map(Path::to_owned);
        assert_eq!(path("sqlite:a/b.db"), Some("a/b.db".into()));
        assert_eq!(path("sqlite:///tmp/b.db"), Some("/tmp/b.db".into()));
        assert_eq!(path("postgres://shop@db.example/orders"), None);
        assert_eq!(path("postgresql://db.example:6432/orders?sslmode=require"), None);
        for bad in ["sqlite:", "sqlite::memory:", "postrider.db", "mysql:x", "postgres://db:port/x"] {
            assert!(StoreUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
