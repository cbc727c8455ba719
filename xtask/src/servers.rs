//! The servers that a run of tests shares. They end when this value goes, or with this process.

use test_servers::{Postgres, postgres};

use crate::brokers::{self, Brokers};
use crate::{download, node_sqlite, old_sqlite, prepare, schemathesis};

pub(crate) struct Servers {
    postgres: Postgres,
    brokers: Brokers,
    missing: Vec<String>,
}

impl Servers {
    /// Installs what is needed for them, too.
    pub(crate) fn start() -> Result<Self, String> {
        prepare::prepare()?;
        let missing = download::postgres_versions().into_iter();
        let missing = missing.chain(old_sqlite::missing()).chain(schemathesis::missing());
        let missing = missing.chain(node_sqlite::missing());
        let missing = missing.chain(brokers::missing()).collect();
        Ok(Self { postgres: Postgres::start()?, brokers: Brokers::start()?, missing })
    }

    /// How tests find them.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        [vec![(postgres::SHARED, self.postgres.url())], self.brokers.environment()].concat()
    }
}

/// Said last, where it is not overlooked.
impl Drop for Servers {
    fn drop(&mut self) {
        for missing in &self.missing {
            eprintln!("\nxtask: {missing}");
        }
    }
}
