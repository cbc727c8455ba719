//! Signatures of Standard Webhooks 1.0: what is signed is `{id}.{timestamp}.{body}`.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ed25519_dalek::{Signer as _, Verifier as _};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Key sizes that the specification allows for HMAC-SHA256.
const SYMMETRIC_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// Signs what is sent to an endpoint. Made from `whsec_…` (v1) or `whsk_…` (v1a).
#[derive(Clone)]
pub struct SigningKey(Signing);

#[derive(Clone)]
enum Signing {
    /// Keyed once: a clone of it costs less than the two rounds that keying takes.
    Hmac(Hmac<Sha256>),
    Ed25519(Box<ed25519_dalek::SigningKey>),
}

/// Verifies what was received. Made from a signing secret, or from a public key `whpk_…`.
#[derive(Clone)]
pub struct VerifyingKey(Verifying);

#[derive(Clone)]
enum Verifying {
    Hmac(Hmac<Sha256>),
    Ed25519(Box<ed25519_dalek::VerifyingKey>),
}

/// Why a key was refused. Never says anything of the key itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("must begin with whsec_ or whsk_, or be a reference to such a secret")]
    Prefix,
    #[error("must be base64 after its prefix")]
    Base64,
    #[error("must be 24 to 64 bytes long after whsec_, once decoded")]
    SymmetricLength,
    #[error("must be a seed of 32 bytes after whsk_, or seed and public key together, once decoded")]
    Seed,
    #[error("must be an ed25519 public key of 32 bytes after whpk_, once decoded")]
    PublicKey,
}

impl SigningKey {
    pub fn parse(secret: &str) -> Result<Self, KeyError> {
        if let Some(encoded) = secret.strip_prefix("whsec_") {
            return Ok(Self(Signing::Hmac(symmetric(encoded)?)));
        }
        let encoded = secret.strip_prefix("whsk_").ok_or(KeyError::Prefix)?;
        Ok(Self(Signing::Ed25519(Box::new(seed(encoded)?))))
    }

    /// One signature, version included: `v1,…` or `v1a,…`.
    pub fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut signature = String::with_capacity(96);
        self.sign_onto(&mut signature, id, timestamp, body);
        signature
    }

    fn sign_onto(&self, out: &mut String, id: &str, timestamp: i64, body: &[u8]) {
        let prefix = format!("{id}.{timestamp}.");
        match &self.0 {
            Signing::Hmac(keyed) => {
                out.push_str("v1,");
                BASE64_STANDARD.encode_string(mac(keyed, &prefix, body).finalize().into_bytes(), out);
            }
            Signing::Ed25519(key) => {
                out.push_str("v1a,");
                BASE64_STANDARD.encode_string(key.sign(&signed_bytes(&prefix, body)).to_bytes(), out);
            }
        }
    }
}

/// The value of `webhook-signature`: every key signs, so that receivers can change keys one by one.
pub fn signatures(keys: &[SigningKey], id: &str, timestamp: i64, body: &[u8]) -> String {
    let mut header = String::with_capacity(96 * keys.len());
    for key in keys {
        if !header.is_empty() {
            header.push(' ');
        }
        key.sign_onto(&mut header, id, timestamp, body);
    }
    header
}

impl VerifyingKey {
    pub fn parse(key: &str) -> Result<Self, KeyError> {
        if let Some(encoded) = key.strip_prefix("whpk_") {
            let bytes = decoded(encoded)?.try_into().map_err(|_| KeyError::PublicKey)?;
            let key = ed25519_dalek::VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError::PublicKey)?;
            return Ok(Self(Verifying::Ed25519(Box::new(key))));
        }
        Ok(Self(match SigningKey::parse(key)?.0 {
            Signing::Hmac(keyed) => Verifying::Hmac(keyed),
            Signing::Ed25519(key) => Verifying::Ed25519(Box::new(key.verifying_key())),
        }))
    }

    /// Of the signatures that it can verify: `v1` or `v1a`.
    pub fn version(&self) -> &'static str {
        match &self.0 {
            Verifying::Hmac(_) => "v1",
            Verifying::Ed25519(_) => "v1a",
        }
    }

    /// Does any signature of the header fit? Compares in constant time. How old a timestamp may be is
    /// the caller's to judge.
    pub fn verify(&self, id: &str, timestamp: i64, body: &[u8], header: &str) -> bool {
        let prefix = format!("{id}.{timestamp}.");
        header.split(' ').filter_map(|signature| signature.split_once(',')).any(|(version, encoded)| {
            let Ok(signature) = BASE64_STANDARD.decode(encoded) else {
                return false;
            };
            match (&self.0, version) {
                (Verifying::Hmac(keyed), "v1") => mac(keyed, &prefix, body).verify_slice(&signature).is_ok(),
                (Verifying::Ed25519(key), "v1a") => ed25519_dalek::Signature::from_slice(&signature)
                    .is_ok_and(|signature| key.verify(&signed_bytes(&prefix, body), &signature).is_ok()),
                (Verifying::Hmac(_) | Verifying::Ed25519(_), _) => false,
            }
        })
    }
}

fn symmetric(encoded: &str) -> Result<Hmac<Sha256>, KeyError> {
    let key = decoded(encoded)?;
    if !SYMMETRIC_BYTES.contains(&key.len()) {
        return Err(KeyError::SymmetricLength);
    }
    Hmac::new_from_slice(&key).map_err(|_| KeyError::SymmetricLength)
}

fn seed(encoded: &str) -> Result<ed25519_dalek::SigningKey, KeyError> {
    let bytes = decoded(encoded)?;
    if let Ok(seed) = <&[u8; 32]>::try_from(bytes.as_slice()) {
        return Ok(ed25519_dalek::SigningKey::from_bytes(seed));
    }
    let pair = <&[u8; 64]>::try_from(bytes.as_slice()).map_err(|_| KeyError::Seed)?;
    ed25519_dalek::SigningKey::from_keypair_bytes(pair).map_err(|_| KeyError::Seed)
}

fn decoded(encoded: &str) -> Result<Vec<u8>, KeyError> {
    BASE64_STANDARD.decode(encoded).map_err(|_| KeyError::Base64)
}

fn mac(keyed: &Hmac<Sha256>, prefix: &str, body: &[u8]) -> Hmac<Sha256> {
    let mut mac = keyed.clone();
    mac.update(prefix.as_bytes());
    mac.update(body);
    mac
}

/// ed25519 reads what it signs twice, so it needs all of it in one piece.
fn signed_bytes(prefix: &str, body: &[u8]) -> Vec<u8> {
    [prefix.as_bytes(), body].concat()
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SigningKey(***)")
    }
}

impl std::fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VerifyingKey(***)")
    }
}
