//! The object `tls` of a config, the same for every protocol.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use super::keys::{ConfigKey, ValueKind};
use super::rules::{Must, Rule};
use super::secret::Reference;
use super::{Relation, Then};
use crate::error::Invalid;

const PEM_BYTES_MAX: usize = 1 << 20;

pub(super) const TLS: ConfigKey = ConfigKey::new(
    "tls",
    ValueKind::Object(&[
        ConfigKey::new("ca", ValueKind::Text { bytes_max: PEM_BYTES_MAX, rules: CERTIFICATES }),
        ConfigKey::new("client_cert", ValueKind::Text { bytes_max: PEM_BYTES_MAX, rules: CERTIFICATES }),
        ConfigKey::new("client_key", ValueKind::Secret(PRIVATE_KEY)),
    ]),
);

pub(super) const CERTIFICATE_NEEDS_KEY: Relation = Relation {
    given: "tls.client_cert",
    is: None,
    then: Then::Needs("tls.client_key"),
    says: "needs config.tls.client_key",
};
pub(super) const KEY_NEEDS_CERTIFICATE: Relation = Relation {
    given: "tls.client_key",
    is: None,
    then: Then::Needs("tls.client_cert"),
    says: "needs config.tls.client_cert",
};

const CERTIFICATES: &[Rule] = &[
    // Certificates are shown to everyone who may read endpoints, so no private key may come with them.
    Rule::new(Must::NotContain(&["private key-----"]), "must hold certificates only, and no private key"),
    Rule::new(Must::Contain("-----BEGIN CERTIFICATE-----"), NO_CERTIFICATE),
];
const NO_CERTIFICATE: &str = "must be PEM text with at least one certificate";

const NO_PRIVATE_KEY: &str = "must be PEM text with a private key, or a reference to such a secret";
const PRIVATE_KEY: &[Rule] = &[Rule::new(Must::Contain("PRIVATE KEY-----"), NO_PRIVATE_KEY)];

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsConfig {
    pub(crate) ca: Option<String>,
    pub(crate) client_cert: Option<String>,
    /// Or a reference to it.
    pub(crate) client_key: Option<String>,
}

impl TlsConfig {
    /// For receivers that the certificate is not meant for.
    pub(crate) fn without_identity(&self) -> Self {
        Self { ca: self.ca.clone(), ..Self::default() }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        for (key, pem) in [("ca", &self.ca), ("client_cert", &self.client_cert)] {
            let found = pem.as_deref().map_or(Ok(Vec::new()), certificates);
            found.map_err(|rule| Invalid::new(format!("config.tls.{key}"), rule))?;
        }
        match self.client_key.as_deref().filter(|key| !Reference::is_one(key)) {
            Some(key) => {
                private_key(key).map(drop).map_err(|rule| Invalid::new("config.tls.client_key", rule))
            }
            None => Ok(()),
        }
    }
}

/// At least one. The reader skips lines that begin with blanks.
pub(crate) fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let read = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let found = read.map_err(|_| "is not valid PEM")?;
    if found.is_empty() { Err(NO_CERTIFICATE) } else { Ok(found) }
}

pub(crate) fn private_key(pem: &str) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| NO_PRIVATE_KEY)
}
