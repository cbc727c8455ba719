//! Keys with which users of NATS sign in, and credentials files: a JWT and such a key.
#![cfg_attr(not(feature = "nats"), allow(dead_code))]

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use ed25519_dalek::{Signer as _, SigningKey};

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// The first bits of a seed, and of the public key of a user.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

const NO_SEED: &str = "is not the seed of a user";
const NO_CREDENTIALS: &str = "is not the text of a credentials file, with a JWT and the seed of a user";

pub(super) struct NatsKey(SigningKey);

impl NatsKey {
    pub(super) fn parse(seed: &str) -> Result<Self, &'static str> {
        let bytes = decoded(seed.trim()).ok_or(NO_SEED)?;
        let bytes: [u8; 36] = bytes.try_into().map_err(|_| NO_SEED)?;
        let (content, check) = bytes.split_at(34);
        let kind = (content[0] & 7) << 5 | content[1] >> 3;
        if check != crc16(content).to_le_bytes() || content[0] & 0xf8 != SEED || kind != USER {
            return Err(NO_SEED);
        }
        let secret = content[2..].try_into().map_err(|_| NO_SEED)?;
        Ok(Self(SigningKey::from_bytes(secret)))
    }

    /// The user's name.
    pub(super) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend(self.0.verifying_key().to_bytes());
        bytes.extend(crc16(&bytes).to_le_bytes());
        encoded(&bytes)
    }

    pub(super) fn sign(&self, nonce: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.0.sign(nonce.as_bytes()).to_bytes())
    }
}

pub(super) struct NatsCredentials {
    pub(super) jwt: String,
    pub(super) key: NatsKey,
}

impl NatsCredentials {
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let after = |title: &str| text.lines().skip_while(|line| !line.contains(title)).nth(1).map(str::trim);
        let jwt = after("BEGIN NATS USER JWT").filter(|jwt| !jwt.is_empty()).ok_or(NO_CREDENTIALS)?;
        let seed = after("BEGIN USER NKEY SEED").ok_or(NO_CREDENTIALS)?;
        let key = NatsKey::parse(seed).map_err(|_| NO_CREDENTIALS)?;
        Ok(Self { jwt: jwt.to_owned(), key })
    }
}

/// Base32 without padding.
fn decoded(text: &str) -> Option<Vec<u8>> {
    let (mut bits, mut count, mut bytes) = (0_u32, 0, Vec::with_capacity(text.len()));
    for letter in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == letter)?;
        bits = bits << 5 | u32::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 0xff) as u8);
        }
    }
    Some(bytes)
}

fn encoded(bytes: &[u8]) -> String {
    let (mut bits, mut count, mut text) = (0_u32, 0, String::new());
    for byte in bytes {
        bits = bits << 8 | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            text.push(char::from(ALPHABET[(bits >> count & 31) as usize]));
        }
    }
    if count > 0 {
        text.push(char::from(ALPHABET[(bits << (5 - count) & 31) as usize]));
    }
    text
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| match crc & 0x8000 {
            0 => crc << 1,
            _ => crc << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &str = "SUAHA33TORZGSZDFOIQHIZLTORZSA33ONR4SYIDON52CA43FMNZGK5HCCI";
    const PUBLIC: &str = "UDTNQZ4J3DAJSGNPVPTWRBHZFIG2BICG33VUTQO5B6YLC6FBERZBESS7";

    #[test]
    fn a_seed_has_the_public_key_that_the_server_knows() {
        assert_eq!(NatsKey::parse(SEED).unwrap().public(), PUBLIC);
    }

    #[test]
    fn what_is_no_seed_of_a_user_is_refused() {
        let typo = SEED.replace("TORZGS", "TORZGT");
        for seed in [PUBLIC, &typo, &SEED[1..], "", "SU", "not base32!"] {
            assert_eq!(NatsKey::parse(seed).err(), Some(NO_SEED), "{seed}");
        }
    }

    #[test]
    fn credentials_hold_a_token_and_a_key() {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\r\neyJ0.e30.c2ln\r\n------END NATS USER JWT------\r\n\r\n\
             -----BEGIN USER NKEY SEED-----\r\n{SEED}\r\n------END USER NKEY SEED------\r\n"
        );
        let credentials = NatsCredentials::parse(&text).unwrap();
        assert_eq!((credentials.jwt.as_str(), credentials.key.public().as_str()), ("eyJ0.e30.c2ln", PUBLIC));
        let without_seed = text.split("-----BEGIN USER").next().unwrap();
        assert_eq!(NatsCredentials::parse(without_seed).err(), Some(NO_CREDENTIALS));
    }
}
