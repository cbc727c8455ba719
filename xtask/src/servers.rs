//! The servers that a run of tests shares. They end when this value goes, or with this process.

use test_servers::{Postgres, postgres};

pub(crate) struct Servers {
    postgres: Postgres,
}

impl Servers {
    pub(crate) fn start() -> Result<Self, String> {
        Ok(Self { postgres: Postgres::start()? })
    }

    /// How tests find them.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![(postgres::SHARED, self.postgres.url())]
    }
}
