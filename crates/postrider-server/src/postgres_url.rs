//! The address of a PostgreSQL store: as it was typed, since it may name several hosts, which no other URL does.

use std::fmt;

use postrider::PostgresStore;

use crate::failure::CommandError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresUrl(String);

impl PostgresUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, CommandError> {
        // Not quoted: it may hold a password.
        PostgresStore::check_url(text).map_err(|error| {
            CommandError::usage(format!("{error}"))
                .hint("a store is written as postgres://user:password@host/database")
        })?;
        Ok(Self(text.to_owned()))
    }

    /// Password and all.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn database(&self) -> &str {
        let (_, database, _) = self.parts();
        database.trim_start_matches('/')
    }

    pub(crate) fn with_database(&self, name: &str) -> Self {
        let (server, _, options) = self.parts();
        Self(format!("{server}/{name}{options}"))
    }

    /// Server, `/database` and `?options`.
    fn parts(&self) -> (&str, &str, &str) {
        let after_user = self.0.find('@').or(self.0.find("://").map(|at| at + 2)).map_or(0, |at| at + 1);
        let from = |pattern: char, start: usize| {
            self.0[start..].find(pattern).map_or(self.0.len(), |length| start + length)
        };
        let options = from('?', after_user);
        let database = from('/', after_user).min(options);
        (&self.0[..database], &self.0[database..options], &self.0[options..])
    }
}

/// Without a password, wherever it is written.
impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, database, _) = self.parts();
        let (scheme, address) = server.split_once("://").unwrap_or(("postgres", server));
        match address.split_once('@') {
            Some((user, hosts)) => {
                let name = user.split(':').next().unwrap_or_default();
                write!(f, "{scheme}://{name}@{hosts}{database}")
            }
            None => write!(f, "{scheme}://{address}{database}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        PostgresUrl::parse(text).expect("right").to_string()
    }

    #[test]
    fn a_password_is_never_shown() {
        let secret = "postgres://shop:geheim@db.example/orders?password=geheim";
        assert_eq!(shown(secret), "postgres://shop@db.example/orders");
        assert_eq!(shown("postgres://shop:ge?h/eim@db.example"), "postgres://shop@db.example");
        let wrong = PostgresUrl::parse("postgres://shop:geheim@db:port/orders").expect_err("no port");
        assert!(!wrong.error.contains("geheim"), "{}", wrong.error);
    }

    #[test]
    fn several_hosts_are_one_address() {
        let pair = "postgresql://shop:x@one:5432,two:5433/orders?target_session_attrs=read-write";
        assert_eq!(shown(pair), "postgresql://shop@one:5432,two:5433/orders");
        let url = PostgresUrl::parse(pair).expect("right");
        assert_eq!(url.database(), "orders");
        let other = url.with_database("bench");
        assert_eq!(
            other.as_str(),
            "postgresql://shop:x@one:5432,two:5433/bench?target_session_attrs=read-write"
        );
        assert_eq!(
            PostgresUrl::parse("postgres://one,two").expect("right").with_database("b").database(),
            "b"
        );
    }
}
