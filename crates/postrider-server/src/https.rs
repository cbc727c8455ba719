//! The way to other servers over HTTP: encrypted where the address says so, trusting what this machine trusts.

use std::time::Duration;

use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, RootCertStore};

use crate::failure::CommandError;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn connector() -> Result<HttpsConnector<HttpConnector>, CommandError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = rustls::crypto::ring::default_provider();
    let config = ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| CommandError::failed(format!("cannot set up TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut plain = HttpConnector::new();
    plain.enforce_http(false);
    plain.set_connect_timeout(Some(CONNECT_TIMEOUT));
    Ok(HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http()
        .enable_http1()
        .wrap_connector(plain))
}
