//! A secret in every place that the tables of keys have for one, in configs that are valid but for what a test breaks.

use postrider::protocol::{ConfigKey, Protocol, SetBy, Then, ValueKind};
use serde_json::{Value, json};
use test_servers::brokers::{PASSWORD, USER};
use test_servers::{BrokerKind, BrokerListeners};

/// One of them fits each place. Whoever adds a key that none fits adds one that does.
const SECRETS: [&str; 5] = [
    "leak-planted-text",
    // leak-planted-signing-secret-32-b
    "whsec_bGVhay1wbGFudGVkLXNpZ25pbmctc2VjcmV0LTMyLWI=",
    SEED,
    concat!(
        "-----BEGIN NATS USER JWT-----\nleak-planted-jwt\n------END NATS USER JWT------\n",
        "-----BEGIN USER NKEY SEED-----\n",
        "SUAGYZLBNMWXA3DBNZ2GKZBNONSWKZBNN5TC2MZSFVRHS5DFOMQSCIIJDA",
        "\n------END USER NKEY SEED------\n"
    ),
    // leak-planted-key
    "-----BEGIN PRIVATE KEY-----\nbGVhay1wbGFudGVkLWtleQ==\n-----END PRIVATE KEY-----\n",
];
/// Of leak-planted-seed-of-32-bytes!!!
pub(super) const SEED: &str = "SUAGYZLBNMWXA3DBNZ2GKZBNONSWKZBNN5TC2MZSFVRHS5DFOMQSCIIJDA";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

/// A key of a config that may hold a secret.
pub(super) struct SecretPlace {
    pub(super) protocol: Protocol,
    /// From the outermost key on; within a map it ends with a name of a header.
    path: Vec<&'static str>,
    /// The `type` of the objects on the path that have one.
    types: Value,
    is_list: bool,
}

impl SecretPlace {
    /// Of every protocol.
    pub(super) fn all() -> Vec<Self> {
        let mut found = Vec::new();
        for &protocol in Protocol::ALL {
            let in_config = |key: &&ConfigKey| key.set_by != SetBy::Message;
            protocol
                .keys()
                .filter(in_config)
                .for_each(|key| find(protocol, key, &[], &json!({}), &mut found));
        }
        found
    }

    /// As endpoints and files may be named.
    pub(super) fn name(&self) -> String {
        let kind = self.types[self.path[0]]["type"].as_str().map_or(String::new(), |kind| format!(".{kind}"));
        format!("{}-{}{kind}", self.protocol.as_str(), self.path.join("."))
    }

    /// Of the environment.
    pub(super) fn variable(&self) -> String {
        let name = self.name().to_uppercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        format!("POSTRIDER_SECRET_{name}")
    }

    /// A secret that this place takes.
    pub(super) fn secret(&self) -> &'static str {
        let fits = |secret: &&&str| self.checks(&self.config(9, secret));
        SECRETS.iter().find(fits).unwrap_or_else(|| panic!("no planted secret fits {}", self.name()))
    }

    /// The secret itself, and references to it.
    pub(super) fn texts(&self) -> [(&'static str, String); 3] {
        [
            ("itself", self.secret().to_owned()),
            ("variable", format!("${{{}}}", self.variable())),
            ("file", format!("file:{}", self.name())),
        ]
    }

    /// Of an endpoint on this port of loopback.
    pub(super) fn config(&self, port: u16, text: &str) -> Value {
        let mut config = self.types.clone();
        let value = if self.is_list { json!([text]) } else { json!(text) };
        *at(&mut config, &self.path) = value;
        if let [within @ .., "password"] = &self.path[..] {
            at(&mut config, within)["username"] = USER.into();
        }
        self.complete(&mut config, &[], &self.protocol.keys().collect::<Vec<_>>(), port);
        for relation in self.protocol.definition().relations {
            let path: Vec<&str> = relation.given.split('.').collect();
            if let (Then::Needs(other), true) = (&relation.then, has(&config, &path)) {
                self.choose(&mut config, &other.split('.').collect::<Vec<_>>(), texts(port));
            }
        }
        config
    }

    /// Secrets that this broker knows: a password, the key of a certificate.
    pub(super) fn right(&self, listeners: &BrokerListeners) -> Option<Value> {
        let read = |path| std::fs::read_to_string(path).expect("a file of the broker");
        match &self.path[..] {
            [.., "password"] => Some(self.config(listeners.password, PASSWORD)),
            [.., "client_key"] => {
                let mut config = self.config(listeners.mutual_tls, &read(listeners.client_key()));
                config["tls"]["client_cert"] = read(listeners.client_certificate()).into();
                config["tls"]["ca"] = read(listeners.authority()).into();
                Some(config)
            }
            _ => None,
        }
    }

    /// Configs that the table refuses, each with a secret where it should not be, or as it should not be.
    pub(super) fn refused(&self) -> Vec<Value> {
        let good = self.config(9, &format!("${{{}}}", self.variable()));
        let secret = self.secret();
        let (last, within) = self.path.split_last().expect("a path has a key");
        let put = |path: &[&str], value: Value| {
            let mut config = good.clone();
            *at(&mut config, path) = value;
            config
        };
        let values = [
            json!([secret]),
            json!({ "a": secret }),
            json!([[secret]]),
            json!(format!("{secret}\u{1}")),
            json!(format!("${{{secret}}}")),
            json!(format!("${{{secret}")),
            json!(format!("file:../{secret}")),
        ];
        let mut configs: Vec<Value> = values.into_iter().map(|value| put(&self.path, value)).collect();
        configs.push(put(&[within, &[&*format!("{last}x")]].concat(), secret.into()));
        configs.push(put(&[&*format!("{}x", self.path[0])], secret.into()));
        configs.push(put(&self.path[..1], secret.into()));
        for key in self.protocol.keys().filter(|key| key.kind.is_text() && key.set_by != SetBy::Message) {
            for text in ["nats://me:leak-planted@127.0.0.1:9", "me:leak-planted@127.0.0.1:9"] {
                configs.push(put(&[key.name], text.into()));
            }
        }
        configs.retain(|config| !self.checks(config));
        configs
    }

    /// Puts something in the place of all that is required. Objects first: the table refuses what is wrong in them before it
    /// looks at what stands beside them.
    fn complete(&self, config: &mut Value, within: &[&str], keys: &[&ConfigKey], port: u16) {
        let mut keys = keys.to_vec();
        keys.sort_by_key(|key| !matches!(key.kind, ValueKind::Object(_) | ValueKind::Typed(_)));
        for key in keys {
            let path = &[within, &[key.name]].concat()[..];
            match &key.kind {
                ValueKind::Whole { .. } if key.name == "port" => *at(config, path) = port.into(),
                ValueKind::Object(keys) if has(config, path) => {
                    self.complete(config, path, &keys.iter().collect::<Vec<_>>(), port);
                }
                ValueKind::Typed(variants) if has(config, path) => {
                    let kind = at(config, path)["type"].clone();
                    let (_, keys) = variants.iter().find(|(name, _)| kind == *name).expect("a type");
                    self.complete(config, path, &keys.iter().collect::<Vec<_>>(), port);
                }
                _ if !key.required => {}
                ValueKind::Choice(choices) => self.choose(config, path, vec![choices[0].to_owned()]),
                ValueKind::Secret(_) => self.choose(config, path, SECRETS.map(str::to_owned).into()),
                _ => self.choose(config, path, texts(port)),
            }
        }
    }

    /// The first text that the table does not refuse there.
    fn choose(&self, config: &mut Value, path: &[&str], texts: Vec<String>) {
        if has(config, path) {
            return;
        }
        let field = format!("config.{}", path.join("."));
        let is_refused = |config: &Value| {
            let checked = self.protocol.check_config(config.as_object().expect("an object"));
            checked.is_err_and(|invalid| invalid.field == field)
        };
        for text in texts {
            *at(config, path) = text.into();
            if !is_refused(config) {
                return;
            }
        }
        panic!("no text fits {field} of {}", self.protocol.as_str());
    }

    fn checks(&self, config: &Value) -> bool {
        self.protocol.check_config(config.as_object().expect("an object")).is_ok()
    }
}

/// Adds the places below a key.
fn find(
    protocol: Protocol,
    key: &'static ConfigKey,
    within: &[&'static str],
    types: &Value,
    found: &mut Vec<SecretPlace>,
) {
    let path = [within, &[key.name]].concat();
    let mut add = |path: Vec<&'static str>, is_list| {
        found.push(SecretPlace { protocol, path, types: types.clone(), is_list });
    };
    match &key.kind {
        ValueKind::Secret(_) => add(path, false),
        ValueKind::Secrets { .. } => add(path, true),
        ValueKind::Map(_) => add([&path[..], &["x-api-key"]].concat(), false),
        ValueKind::Object(keys) => keys.iter().for_each(|key| find(protocol, key, &path, types, found)),
        ValueKind::Typed(variants) => {
            for (kind, keys) in *variants {
                let mut types = types.clone();
                at(&mut types, &path)["type"] = (*kind).into();
                keys.iter().for_each(|key| find(protocol, key, &path, &types, found));
            }
        }
        ValueKind::Flag
        | ValueKind::Whole { .. }
        | ValueKind::Seconds { .. }
        | ValueKind::Choice(_)
        | ValueKind::Text { .. }
        | ValueKind::TextOrEmpty { .. }
        | ValueKind::Codes { .. } => {}
    }
}

/// What fits most keys: a host, several, URLs, a certificate.
fn texts(port: u16) -> Vec<String> {
    let address = format!("127.0.0.1:{port}");
    vec![
        "127.0.0.1".to_owned(),
        address.clone(),
        format!("http://{address}"),
        format!("nats://{address}"),
        CERTIFICATE.to_owned(),
    ]
}

fn at<'c>(config: &'c mut Value, path: &[&str]) -> &'c mut Value {
    path.iter().fold(config, |value, key| &mut value[*key])
}

fn has(config: &Value, path: &[&str]) -> bool {
    path.iter().try_fold(config, |value, key| value.get(key)).is_some()
}

/// Where the protocol has a broker.
pub(super) fn broker(protocol: Protocol) -> Option<BrokerKind> {
    let brokers = [
        ("mqtt", BrokerKind::Mosquitto),
        ("redis", BrokerKind::Redis),
        ("nats", BrokerKind::Nats),
        ("amqp", BrokerKind::RabbitMq),
        ("kafka", BrokerKind::Kafka),
    ];
    brokers.into_iter().find(|(name, _)| *name == protocol.as_str()).map(|(_, kind)| kind)
}
