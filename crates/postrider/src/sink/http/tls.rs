//! What certificates are trusted, and which versions of HTTP are offered.

use std::sync::{Arc, OnceLock};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use rustls_native_certs::ErrorKind;

use crate::sink::{Resource, Shortage, Undelivered};
use crate::verdict::Failure;

/// Trusts what the machine trusts, and the authority of the endpoint's config besides.
pub(super) fn client_config(ca: Option<&str>, http2: bool) -> Result<Arc<ClientConfig>, Undelivered> {
    let mut roots = machine_roots()?.clone();
    for certificate in CertificateDer::pem_slice_iter(ca.unwrap_or_default().as_bytes()) {
        let added = certificate.map_err(|_| ()).and_then(|der| roots.add(der).map_err(|_| ()));
        added.map_err(|()| Failure::permanent("config.tls.ca: holds a certificate that cannot be used"))?;
    }
    if roots.is_empty() {
        return Err(Failure::retryable(
            "this node trusts no certificates; install the machine's root certificates or set config.tls.ca",
        )
        .into());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::permanent(format!("TLS cannot be used: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = match http2 {
        true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        false => vec![b"http/1.1".to_vec()],
    };
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
