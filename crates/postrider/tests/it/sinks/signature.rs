//! Standard Webhooks 1.0, against the values that its reference libraries publish.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use postrider::protocol::signature::{KeyError, SigningKey, VerifyingKey, signatures};

const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const TIMESTAMP: i64 = 1_614_265_330;
const BODY: &[u8] = br#"{"test": 2432232314}"#;

const WHSEC: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const V1: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

const WHSK: &str =
    "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
const WHSK_SEED: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbc=";
const WHPK: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";
const V1A: &str =
    "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg==";

fn sign(secret: &str) -> String {
    SigningKey::parse(secret).unwrap().sign(ID, TIMESTAMP, BODY)
}

fn verify(key: &str, header: &str) -> bool {
    VerifyingKey::parse(key).unwrap().verify(ID, TIMESTAMP, BODY, header)
}

#[test]
fn symmetric_signatures_are_the_published_ones() {
    assert_eq!(sign(WHSEC), V1);
}

#[test]
fn asymmetric_signatures_are_the_published_ones_from_seed_or_key_pair() {
    assert_eq!(sign(WHSK), V1A);
    assert_eq!(sign(WHSK_SEED), V1A);
}

#[test]
fn several_secrets_sign_together() {
    let keys = [SigningKey::parse(WHSEC).unwrap(), SigningKey::parse(WHSK).unwrap()];
    assert_eq!(signatures(&keys, ID, TIMESTAMP, BODY), format!("{V1} {V1A}"));
}

#[test]
fn a_signature_is_verified_with_secret_or_public_key_anywhere_in_the_header() {
    for key in [WHSEC, WHSK, WHSK_SEED, WHPK] {
        assert!(verify(key, &format!("v1,AAAA v2,x {V1A} {V1}")), "{key}");
    }
}

#[test]
fn anything_that_was_changed_is_not_verified() {
    let header = format!("{V1} {V1A}");
    for key in [WHSEC, WHPK] {
        let key = VerifyingKey::parse(key).unwrap();
        assert!(key.verify(ID, TIMESTAMP, BODY, &header));
        assert!(!key.verify("msg_other", TIMESTAMP, BODY, &header));
        assert!(!key.verify(ID, TIMESTAMP + 1, BODY, &header));
        assert!(!key.verify(ID, TIMESTAMP, b"{}", &header));
        for broken in ["", "v1", "v1,", "v1,!", "v1a,AAAA", "v1 g0hM", &V1.replace("v1,", "v1a,"), &V1[..40]]
        {
            assert!(!key.verify(ID, TIMESTAMP, BODY, broken), "{broken:?}");
        }
    }
    assert!(!verify(WHSEC, V1A) && !verify(WHPK, V1), "a version belongs to its kind of key");
}

#[test]
fn keys_have_the_lengths_that_the_specification_allows() {
    let whsec = |bytes: usize| format!("whsec_{}", BASE64_STANDARD.encode(vec![7; bytes]));
    for (bytes, good) in [(0, false), (23, false), (24, true), (32, true), (64, true), (65, false)] {
        assert_eq!(SigningKey::parse(&whsec(bytes)).is_ok(), good, "{bytes}");
    }
    let error = |key: &str| SigningKey::parse(key).unwrap_err();
    assert_eq!(error("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), KeyError::Prefix);
    assert_eq!(error(WHPK), KeyError::Prefix);
    assert_eq!(error("whsec_*"), KeyError::Base64);
    assert_eq!(error("whsk_AAAA"), KeyError::Seed);
    let mismatched = format!("whsk_{}", BASE64_STANDARD.encode([1; 64]));
    assert_eq!(error(&mismatched), KeyError::Seed);
    assert_eq!(VerifyingKey::parse("whpk_AAAA").unwrap_err(), KeyError::PublicKey);
}

#[test]
fn keys_do_not_show_themselves() {
    assert_eq!(format!("{:?}", SigningKey::parse(WHSEC).unwrap()), "SigningKey(***)");
    assert_eq!(format!("{:?}", VerifyingKey::parse(WHPK).unwrap()), "VerifyingKey(***)");
}
