//! A server that speaks TLS, and who may come in how.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};

use super::Postgres;
use crate::process::USER;

/// What a server proves itself with, and whose clients it knows. PEM, all of it.
pub struct Tls {
    pub certificate: String,
    pub key: String,
    pub client_authority: String,
}

impl Postgres {
    /// From here on, with these lines as its whole `pg_hba.conf`.
    pub fn speak_tls(&mut self, tls: &Tls, access: &str) -> Result<(), String> {
        self.keep("server.crt", &tls.certificate)?;
        self.keep("server.key", &tls.key)?;
        self.keep("clients.crt", &tls.client_authority)?;
        self.keep("pg_hba.conf", access)?;
        self.configure("ssl = on\nssl_ca_file = 'clients.crt'\n")?;
        self.start_again()
    }

    /// Only the server may read a key.
    fn keep(&self, name: &str, text: &str) -> Result<(), String> {
        let file = self.data().join(name);
        fs::write(&file, text)
            .and_then(|()| fs::set_permissions(&file, Permissions::from_mode(0o600)))
            .and_then(|()| match &*USER {
                Some(user) => chown(&file, Some(user.id), Some(user.group)),
                None => Ok(()),
            })
            .map_err(|error| format!("cannot write {name}: {error}"))
    }
}
