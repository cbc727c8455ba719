//! How far the server's certificate is trusted: what `sslmode` and `sslrootcert` mean to libpq.

use std::fmt::Display;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use crate::error::StoreError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Encrypted; any certificate will do.
    Anybody,
    /// Signed by a known authority, for any name.
    AnyName,
    Full,
}

/// PEM files that a URL names.
#[derive(Default)]
pub(super) struct Files {
    /// `sslrootcert`: authorities that are trusted instead of the system's.
    pub(super) root: Option<String>,
    /// `sslcert` and `sslkey`: this client's certificate.
    pub(super) certificate: Option<String>,
    pub(super) key: Option<String>,
}

pub(super) fn client_config(trust: Trust, files: &Files) -> Result<ClientConfig, StoreError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| StoreError::Unusable(format!("TLS cannot be used: {error}")))?;
    let root = files.root.as_deref();
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Anybody => Arc::new(Unverified(provider)),
        Trust::AnyName => Arc::new(AnyName(web_verifier(provider, root)?)),
        Trust::Full => web_verifier(provider, root)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    match (&files.certificate, &files.key) {
        (None, None) => Ok(builder.with_no_client_auth()),
        (Some(certificate), Some(key)) => {
            let chain = certificates("sslcert", certificate)?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(unreadable("sslkey", key))?;
            builder.with_client_auth_cert(chain, secret).map_err(unreadable("sslcert", certificate))
        }
        _ => Err(StoreError::Unusable("sslcert and sslkey must be given together".to_owned())),
    }
}

fn web_verifier(
    provider: Arc<CryptoProvider>,
    root_file: Option<&str>,
) -> Result<Arc<WebPkiServerVerifier>, StoreError> {
    let mut roots = RootCertStore::empty();
    match root_file {
        None | Some("system") => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(path) => {
            for certificate in certificates("sslrootcert", path)? {
                roots.add(certificate).map_err(unreadable("sslrootcert", path))?;
            }
        }
    }
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| StoreError::Unusable(format!("no certificate can be trusted: {error}")))
}

fn certificates(option: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, StoreError> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = found.map_err(unreadable(option, path))?;
    if found.is_empty() {
        return Err(StoreError::Unusable(format!("{option} {path}: the file has no certificate")));
    }
    Ok(found)
}

fn unreadable<E: Display>(option: &str, path: &str) -> impl Fn(E) -> StoreError {
    move |error| StoreError::Unusable(format!("{option} {path}: {error}"))
}

/// What is wrong with the server's certificate, and what to do about it.
pub(super) fn advice(error: &tokio_postgres::Error) -> Option<String> {
    let io = std::error::Error::source(error)?.downcast_ref::<std::io::Error>()?;
    let Error::InvalidCertificate(wrong) = io.get_ref()?.downcast_ref::<Error>()? else { return None };
    let what = match wrong {
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "connect by a name that it is made out to, or trust its authority for any name with sslmode=verify-ca"
        }
        // An authority of the same name has another key.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "sslrootcert names the file with the authority that signed it"
        }
        _ => "the server needs another one",
    };
    Some(format!("the server's certificate is not trusted: {wrong}; {what}"))
}

#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        // The chain is checked before the name.
        match self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
