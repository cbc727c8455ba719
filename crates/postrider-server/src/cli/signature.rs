//! `postrider signature …`: sign and verify as Standard Webhooks says, to find out why a receiver refuses.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use postrider::Invalid;
use postrider::protocol::signature::{KeyError, SigningKey, VerifyingKey, signatures};
use serde_json::json;

use super::send;
use crate::failure::CommandError;
use crate::output::Output;

pub(super) const HELP: &str = "\
The secret is whsec_… or whsk_… as in the endpoint's `signing_secrets`; to verify, also a public key whpk_….

Examples:
  postrider signature sign @body.json --id msg_1 --secret-env SHOP_SECRET
  postrider signature verify @body.json --id msg_1 --timestamp 1767225600 \\
      --signature 'v1,…' --secret-file shop.secret";

/// What receivers that follow the specification's advice allow.
const AGE_USUAL: SignedDuration = SignedDuration::from_mins(5);

#[derive(Subcommand)]
pub(crate) enum SignatureCommand {
    /// Print the three headers that go with this body
    Sign {
        #[command(flatten)]
        signed: SignedArgs,
        /// Seconds since 1970 [default: now]
        #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
        timestamp: Option<i64>,
    },
    /// Say whether these headers go with this body, and if not, why; exits with 0 or 1
    Verify {
        #[command(flatten)]
        signed: SignedArgs,
        /// The header `webhook-timestamp`
        #[arg(long, value_name = "SECONDS", allow_hyphen_values = true)]
        timestamp: i64,
        /// The header `webhook-signature`
        #[arg(long, value_name = "SIGNATURES")]
        signature: String,
        /// Refuse a timestamp that is further than this from now, such as 5m
        #[arg(long, value_name = "TIME")]
        tolerance: Option<String>,
    },
}

#[derive(Args)]
pub(crate) struct SignedArgs {
    /// The body itself, @FILE to read it from a file, or - for stdin (also when it is left out)
    body: Option<String>,

    /// The header `webhook-id`
    #[arg(long, value_name = "ID")]
    id: String,

    /// Environment variable that holds a secret; may be given several times
    #[arg(long, value_name = "NAME", required_unless_present = "secret_file")]
    secret_env: Vec<String>,

    /// File that holds a secret; may be given several times
    #[arg(long, value_name = "FILE")]
    secret_file: Vec<PathBuf>,
}

pub(super) fn run(command: SignatureCommand, output: Output) -> Result<(), CommandError> {
    match command {
        SignatureCommand::Sign { signed, timestamp } => {
            let timestamp = timestamp.unwrap_or_else(|| Timestamp::now().as_second());
            sign(&signed, timestamp, output)
        }
        SignatureCommand::Verify { signed, timestamp, signature, tolerance } => {
            let tolerance = tolerance.as_deref().map(duration).transpose()?;
            let keys = signed.keys(VerifyingKey::parse)?;
            let claim = SignedRequest { id: &signed.id, timestamp, header: &signature };
            let body = send::payload(signed.body.as_deref())?;
            let age = Timestamp::now().as_second().saturating_sub(timestamp);
            let age = SignedDuration::from_secs(age);
            claim.judge(&keys, &body, age, tolerance).map_err(CommandError::failed)?;
            let remark = remark(age).filter(|_| tolerance.is_none());
            output.document(
                || json!({ "valid": true, "age_seconds": age.as_secs() }).to_string(),
                || format!("the signature fits{}", remark.unwrap_or_default()),
            )
        }
    }
}

fn sign(signed: &SignedArgs, timestamp: i64, output: Output) -> Result<(), CommandError> {
    let keys = signed.keys(SigningKey::parse)?;
    let body = send::payload(signed.body.as_deref())?;
    let (id, signature) = (&signed.id, signatures(&keys, &signed.id, timestamp, &body));
    output.document(
        || {
            let timestamp = timestamp.to_string();
            json!({ "webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": signature })
                .to_string()
        },
        || format!("webhook-id: {id}\nwebhook-timestamp: {timestamp}\nwebhook-signature: {signature}"),
    )
}

fn duration(text: &str) -> Result<SignedDuration, Invalid> {
    let read = text.parse().ok().filter(|duration: &SignedDuration| !duration.is_negative());
    read.ok_or_else(|| Invalid::new("tolerance", "must be a time such as 90s, 5m or 2h"))
}

impl SignedArgs {
    /// Never says anything of the secrets themselves.
    fn keys<K>(&self, parse: fn(&str) -> Result<K, KeyError>) -> Result<Vec<K>, CommandError> {
        let mut keys = Vec::new();
        for name in &self.secret_env {
            let secret = std::env::var(name)
                .map_err(|_| CommandError::usage(format!("environment variable {name} is not set")))?;
            keys.push((format!("the secret in {name}"), secret));
        }
        for path in &self.secret_file {
            let secret = std::fs::read_to_string(path)
                .map_err(|error| CommandError::usage(format!("cannot read {}: {error}", path.display())))?;
            keys.push((format!("the secret in {}", path.display()), secret));
        }
        let parse = |(whose, secret): (String, String)| {
            parse(secret.trim()).map_err(|error| CommandError::usage(format!("{whose} {error}")))
        };
        keys.into_iter().map(parse).collect()
    }
}

/// What a request says of itself.
struct SignedRequest<'a> {
    id: &'a str,
    timestamp: i64,
    header: &'a str,
}

impl SignedRequest<'_> {
    fn judge(
        &self,
        keys: &[VerifyingKey],
        body: &[u8],
        age: SignedDuration,
        tolerance: Option<SignedDuration>,
    ) -> Result<(), String> {
        let fits =
            |body: &[u8]| keys.iter().any(|key| key.verify(self.id, self.timestamp, body, self.header));
        if !fits(body) {
            return Err(self.misfit(keys, body, fits));
        }
        match tolerance {
            Some(tolerance) if age.abs() > tolerance => {
                let (away, past) = (age.abs().as_secs(), !age.is_negative());
                let side = if past { "ago" } else { "from now" };
                Err(format!("the signature fits, but it was made {away} s {side}; {tolerance:#} is allowed"))
            }
            _ => Ok(()),
        }
    }

    /// The usual reasons first.
    fn misfit(&self, keys: &[VerifyingKey], body: &[u8], fits: impl Fn(&[u8]) -> bool) -> String {
        let has = |version: &str| {
            self.header.split(' ').any(|part| part.split_once(',').is_some_and(|(known, _)| known == version))
        };
        if !has("v1") && !has("v1a") {
            return "the signature has no part that begins with `v1,` or `v1a,` (webhook-signature is a list of them, \
                    with blanks between)"
                .to_owned();
        }
        if let Some(version) = keys.iter().map(VerifyingKey::version).find(|version| !has(version))
            && keys.iter().all(|key| !has(key.version()))
        {
            return format!("the key is for signatures that begin with `{version},`, and there is none");
        }
        let with_newline = [body, b"\n"].concat();
        let shortened = body.strip_suffix(b"\n").map(|body| body.strip_suffix(b"\r").unwrap_or(body));
        if shortened.is_some_and(&fits) {
            return "the signature fits this body without the line break at its end: sign and verify the same bytes"
                .to_owned();
        }
        if fits(&with_newline) {
            return "the signature fits this body with a line break at its end: sign and verify the same bytes"
                .to_owned();
        }
        "the signature does not fit: the secret, the id, the timestamp or the body is another one (the body counts \
         byte for byte, before anything parsed it)"
            .to_owned()
    }
}

fn remark(age: SignedDuration) -> Option<String> {
    (age.abs() > AGE_USUAL).then(|| {
        let side = if age.is_negative() { "from now" } else { "ago" };
        format!(
            "; it was made {} s {side}, and receivers usually allow {} s",
            age.abs().as_secs(),
            AGE_USUAL.as_secs()
        )
    })
}
