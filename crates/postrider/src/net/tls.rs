//! What certificates are trusted, and the certificate that a client shows.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::ErrorKind;

use super::{Resource, Shortage};
use crate::protocol::secret::Reference;
use crate::protocol::tls::{TlsConfig, certificates, private_key};
use crate::sink::Undelivered;
use crate::sink::secret::Secrets;
use crate::verdict::Failure;

/// Certificate and key that this node shows to receivers that demand them.
pub(super) struct Identity {
    certificates: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    key_is_reference: bool,
}

impl Identity {
    pub(super) fn read(config: &TlsConfig, secrets: &Secrets) -> Result<Option<Self>, Undelivered> {
        let (Some(cert), Some(key)) = (&config.client_cert, &config.client_key) else { return Ok(None) };
        let certificates = certificates(cert)
            .map_err(|rule| Failure::permanent(format!("config.tls.client_cert: {rule}")))?;
        let key_is_reference = Reference::is_one(key);
        Ok(Some(Self { certificates, key: secrets.reveal_as(key, private_key)?, key_is_reference }))
    }
}

/// Trusts what the machine trusts, and the authority of the endpoint's config.
pub(super) fn client_config(
    ca: Option<&str>,
    identity: Option<&Identity>,
    versions: &[&str],
) -> Result<Arc<ClientConfig>, Undelivered> {
    let mut roots = machine_roots()?.clone();
    let trusted = ca.map_or(Ok(Vec::new()), certificates).ok();
    let added = trusted.and_then(|trusted| trusted.into_iter().try_for_each(|der| roots.add(der)).ok());
    added.ok_or_else(|| Failure::permanent("config.tls.ca: holds a certificate that cannot be used"))?;
    if roots.is_empty() {
        return Err(Failure::retryable(
            "this node trusts no certificates; install the machine's root certificates or set config.tls.ca",
        )
        .into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::permanent(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(Identity { certificates, key, key_is_reference }) => {
            builder.with_client_auth_cert(certificates.clone(), key.clone_key()).map_err(|error| {
                let error = format!("config.tls.client_cert: cannot be used: {error}");
                // A key that the node reads may be replaced before the certificate is.
                if *key_is_reference { Failure::retryable(error) } else { Failure::permanent(error) }
            })?
        }
    };
    config.alpn_protocols = versions.iter().map(|version| version.as_bytes().to_vec()).collect();
    Ok(Arc::new(config))
}

/// Read once: there are hundreds of them, and every endpoint trusts the same.
fn machine_roots() -> Result<&'static RootCertStore, Shortage> {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(roots);
    }
    let found = rustls_native_certs::load_native_certs();
    for error in &found.errors {
        // Without them nothing would be trusted for as long as the process lives.
        if let ErrorKind::Io { inner, .. } = &error.kind
            && let Some(of) = Resource::lacking(inner)
        {
            return Err(Shortage {
                of,
                error: format!("cannot read the machine's root certificates: {error}"),
            });
        }
        tracing::warn!(%error, "some of the machine's root certificates cannot be read");
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    Ok(ROOTS.get_or_init(|| roots))
}
