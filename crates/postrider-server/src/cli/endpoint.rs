//! `postrider endpoint …`: create, look at and change endpoints.

use bytes::Bytes;
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use postrider::endpoint::EndpointChange;
use postrider::engine::TestDeliveryReport;
use postrider::protocol::Protocol;
use postrider::{Endpoint, Invalid, NewEndpoint, Operate, StoreError};
use serde_json::{Map, Value, json};

use super::set::{self, SetKey};
use super::{completions, send};
use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;
use crate::remote::Remote;
use crate::view::EndpointView;
use crate::{fields, send_values, view};

type GivenConfig = Option<Map<String, Value>>;

/// How many endpoints are read at a time when all are listed.
const PAGE: usize = 500;

#[derive(Subcommand)]
pub(crate) enum EndpointCommand {
    /// Make an endpoint: postrider endpoint create shop http --url https://example.org/hook
    #[command(after_help = set::help())]
    Create(CreateEndpointArgs),
    /// List them all
    List,
    /// Show one, without its secrets
    Show { name: String },
    /// Change what is given; the rest stays
    #[command(after_help = set::help())]
    Alter(AlterArgs),
    /// Remove one; refused while it has messages
    Drop {
        name: String,
        /// Cancel the messages it still has
        #[arg(long)]
        force: bool,
    },
    /// Accept sends again, and deliver
    Enable { name: String },
    /// Refuse sends; what is pending stays
    Disable { name: String },
    /// Accept sends and deliver nothing
    Pause { name: String },
    /// Deliver again
    Resume { name: String },
    /// Close its circuit by hand
    Reset { name: String },
    /// Send a test message through a running node, outside the queue, and show what the receiver answered
    #[command(after_help = TEST_HELP)]
    Test(TestEndpointArgs),
}

const TEST_HELP: &str = "\
It ends with 0 when the receiver took the message, otherwise with 1. Without --url the node at http://127.0.0.1:7171 sends it.

Examples:
  postrider endpoint test shop
  postrider endpoint test shop '{\"order\": 1}'";

#[derive(Args)]
pub(crate) struct TestEndpointArgs {
    name: String,
    /// The payload, @FILE to read it from a file, or - for stdin [default: JSON that says it is a test]
    payload: Option<String>,
    /// What the payload is
    #[arg(long, value_name = "TYPE", default_value = "application/json", requires = "payload")]
    content_type: String,
}

#[derive(Args)]
pub(crate) struct CreateEndpointArgs {
    /// Letters, digits, '-', '_' and '.'
    name: String,
    /// What its receiver speaks, such as http, file or redis
    #[arg(add = ArgValueCandidates::new(completions::protocols))]
    protocol: String,
    #[command(flatten)]
    policy: PolicyArgs,
}

#[derive(Args)]
pub(crate) struct AlterArgs {
    name: String,
    #[command(flatten)]
    policy: PolicyArgs,
}

#[derive(Args)]
struct PolicyArgs {
    /// Where an http endpoint's messages go; short for --endpoint-config '{"url":…}'. A node to work through is named
    /// before: postrider --url http://NODE endpoint …
    #[arg(long)]
    url: Option<String>,
    /// File a file endpoint appends to; short for --endpoint-config '{"path":…}'
    #[arg(long)]
    path: Option<String>,
    /// A key of the protocol's configuration, such as port=6380, tls.ca=@ca.pem (from a file) or headers.x-tenant=blue; a
    /// value that begins with @ is written with @@. May be given several times
    #[arg(long, value_name = "KEY=VALUE", value_parser = SetKey::parse, add = ArgValueCandidates::new(completions::keys))]
    set: Vec<SetKey>,
    /// The protocol's configuration as a JSON object
    #[arg(long, value_name = "JSON")]
    endpoint_config: Option<String>,
    /// Retry policy as a JSON object, such as {"max_attempts":5,"base_delay_seconds":2}
    #[arg(long, value_name = "JSON")]
    retry_policy: Option<String>,
    /// Options as a JSON object, such as {"max_in_flight":8,"on_dead":"hold"}
    #[arg(long, value_name = "JSON")]
    options: Option<String>,
}

pub(super) async fn run(
    command: EndpointCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = place.open_tool().await?;
    match command {
        EndpointCommand::Create(arguments) => {
            let protocol = Protocol::from_name(&arguments.protocol).ok();
            let config = arguments.policy.config(protocol)?;
            let missing = missing(protocol, &config);
            let endpoint = store
                .create_endpoint(NewEndpoint {
                    name: arguments.name,
                    protocol: arguments.protocol,
                    config,
                    retry_policy: arguments.policy.retry_policy()?,
                    options: arguments.policy.options()?,
                })
                .await
                .map_err(|error| refused(error, missing))?;
            show(&endpoint, &format!("created endpoint {}", endpoint.name), output)?;
        }
        EndpointCommand::List => list(place, &*store, output).await?,
        EndpointCommand::Show { name } => {
            let shown = json!(match place {
                StoreOrNode::Node(node) => node.endpoint_view(&name).await?,
                StoreOrNode::Store(_) => EndpointView::of(&store.endpoint(&name).await?)
                    .with_health(store.endpoint_health(&name).await?),
            });
            let text = || serde_json::to_string_pretty(&shown).expect("JSON");
            output.document(|| shown.to_string(), text)?;
        }
        EndpointCommand::Alter(arguments) => {
            // Without --set no look at the endpoint is needed.
            let protocol = match arguments.policy.set.is_empty() {
                true => None,
                false => Some(store.endpoint(&arguments.name).await?.protocol),
            };
            let single = set::changes(protocol, &arguments.policy.set)?;
            let (config, config_changes) = arguments.policy.given_config(single)?;
            let change = EndpointChange {
                config,
                config_changes,
                retry_policy: arguments.policy.retry_policy()?,
                options: arguments.policy.options()?,
            };
            if change == EndpointChange::default() {
                return Err(CommandError::usage("nothing to change was given; see --help"));
            }
            let endpoint = store.alter_endpoint(&arguments.name, change).await?;
            show(&endpoint, &format!("endpoint {} is changed", endpoint.name), output)?;
        }
        EndpointCommand::Drop { name, force } => {
            store.drop_endpoint(&name, force).await?;
            done(&name, "dropped", output)?;
        }
        EndpointCommand::Enable { name } => {
            store.set_endpoint_enabled(&name, true).await?;
            delivers_again(&store.endpoint(&name).await?, "enabled", output)?;
        }
        EndpointCommand::Disable { name } => {
            store.set_endpoint_enabled(&name, false).await?;
            done(&name, "disabled", output)?;
        }
        EndpointCommand::Pause { name } => {
            store.set_endpoint_paused(&name, true).await?;
            done(&name, "paused", output)?;
        }
        EndpointCommand::Resume { name } => {
            store.set_endpoint_paused(&name, false).await?;
            delivers_again(&store.endpoint(&name).await?, "resumed", output)?;
        }
        EndpointCommand::Reset { name } => {
            store.reset_circuit(&name).await?;
            done(&name, "reset", output)?;
        }
        EndpointCommand::Test(_) => unreachable!("tests go through a node"),
    }
    Ok(())
}

pub(super) async fn test(
    arguments: TestEndpointArgs,
    remote: &Remote,
    output: Output,
) -> Result<(), CommandError> {
    let payload = match &arguments.payload {
        Some(given) => send::payload(Some(given))?,
        None => Bytes::new(),
    };
    let report = remote.test_endpoint(&arguments.name, arguments.content_type, payload).await?;
    let told = tested(&arguments.name, &report);
    if report.delivered || output.json {
        output.document(|| json!(report).to_string(), || told.clone())?;
    }
    if report.delivered { Ok(()) } else { Err(CommandError::failed(told)) }
}

fn tested(name: &str, report: &TestDeliveryReport) -> String {
    let took = format!("{} ms", report.duration.as_millis());
    let status_of = if report.protocol == "http" { "HTTP" } else { "status" };
    let status = report.response_status.map_or(String::new(), |status| format!("{status_of} {status}, "));
    let mut text = match &report.error {
        None if !report.confirmed => {
            format!("endpoint {name} was sent the test message, unconfirmed ({took})")
        }
        None => format!("endpoint {name} took the test message ({status}{took})"),
        Some(error) => format!("endpoint {name} did not take the test message ({status}{took}): {error}"),
    };
    let body = report.response_body.as_deref().map(String::from_utf8_lossy).unwrap_or_default();
    if !body.trim().is_empty() {
        text.push_str(&format!("\n{}", body.trim()));
    }
    text
}

async fn list(place: &StoreOrNode, store: &dyn Operate, output: Output) -> Result<(), CommandError> {
    let mut endpoints: Vec<EndpointView> = Vec::new();
    loop {
        let after = endpoints.last().map(|endpoint| endpoint.name.clone());
        let page: Vec<EndpointView> = match place {
            StoreOrNode::Node(node) => node.endpoint_views(after.as_deref(), PAGE).await?,
            StoreOrNode::Store(_) => {
                store.endpoints(after.as_deref(), PAGE).await?.iter().map(EndpointView::of).collect()
            }
        };
        let last = page.len() < PAGE;
        endpoints.extend(page);
        if last {
            break;
        }
    }
    output.document(
        || json!({ "items": endpoints, "next": null }).to_string(),
        || {
            if endpoints.is_empty() {
                return "no endpoints yet; `postrider endpoint create` makes one".to_owned();
            }
            let rows = endpoints.iter().map(row).collect();
            output.table(&["endpoint", "protocol", "state", "circuit", "destination"], rows)
        },
    )
}

fn row(endpoint: &EndpointView) -> Vec<String> {
    let state = match (endpoint.disabled_by, endpoint.paused) {
        (Some(by), _) => format!("disabled ({})", json!(by).as_str().unwrap_or_default()),
        (None, true) => "paused".to_owned(),
        (None, false) => "enabled".to_owned(),
    };
    // What every endpoint of the protocol has to say: where its messages go.
    let keys = Protocol::from_name(&endpoint.protocol).into_iter().flat_map(Protocol::keys);
    let required = keys.filter(|key| key.required && key.kind.is_text());
    let texts = required.filter_map(|key| endpoint.config.get(key.name)?.as_str());
    let destination: Vec<&str> = texts.filter(|text| !text.is_empty()).collect();
    vec![
        endpoint.name.clone(),
        format!("{}{}", endpoint.protocol, if endpoint.confirmed { "" } else { " (unconfirmed)" }),
        state,
        endpoint.circuit.state.as_str().to_owned(),
        destination.join(" "),
    ]
}

fn show(endpoint: &Endpoint, text: &str, output: Output) -> Result<(), CommandError> {
    let unconfirmed = endpoint.config.unconfirmed_by(&Map::new()).map_or(String::new(), |given| {
        format!("\ndeliveries are unconfirmed: with {given} its receiver acknowledges none, and a message may be lost")
    });
    output.document(|| view::endpoint(endpoint).to_string(), || format!("{text}{unconfirmed}"))
}

/// What still keeps it from delivering is said, too.
fn delivers_again(endpoint: &Endpoint, what: &str, output: Output) -> Result<(), CommandError> {
    let (name, disabled_by, paused) = (&endpoint.name, endpoint.disabled, endpoint.paused);
    let still = match (disabled_by, paused) {
        (Some(_), _) => format!("; it is still disabled: `postrider endpoint enable {name}`"),
        (None, true) => format!("; it is still paused: `postrider endpoint resume {name}`"),
        (None, false) => String::new(),
    };
    output.document(
        || {
            json!({ "endpoint": name, "done": what, "disabled_by": disabled_by, "paused": paused })
                .to_string()
        },
        || format!("endpoint {name} is {what}{still}"),
    )
}

fn done(name: &str, what: &str, output: Output) -> Result<(), CommandError> {
    output.document(
        || json!({ "endpoint": name, "done": what }).to_string(),
        || format!("endpoint {name} is {what}"),
    )
}

impl PolicyArgs {
    fn config(&self, protocol: Option<Protocol>) -> Result<Map<String, Value>, CommandError> {
        let (whole, single) = self.given_config(set::config(protocol, &self.set)?)?;
        let mut config = whole.unwrap_or_default();
        config.extend(single.into_iter().flatten());
        Ok(config)
    }

    /// `--endpoint-config` replaces all of it, `--set` (in `single`), `--url` and `--path` one key each.
    fn given_config(
        &self,
        mut single: Map<String, Value>,
    ) -> Result<(GivenConfig, GivenConfig), CommandError> {
        let whole =
            self.endpoint_config.as_deref().map(|text| send_values::options("config", text)).transpose()?;
        let twice = |key: &str| Invalid::new(format!("config.{key}"), "is given twice");
        for (key, value) in [("url", &self.url), ("path", &self.path)] {
            if let Some(value) = value
                && single.insert(key.to_owned(), value.clone().into()).is_some()
            {
                return Err(twice(key).into());
            }
        }
        if let Some(key) =
            single.keys().find(|key| whole.as_ref().is_some_and(|whole| whole.contains_key(*key)))
        {
            return Err(twice(key).into());
        }
        Ok((whole, (!single.is_empty()).then_some(single)))
    }

    fn retry_policy(&self) -> Result<Option<Value>, CommandError> {
        Ok(self.retry_policy.as_deref().map(|text| json_value("retry_policy", text)).transpose()?)
    }

    fn options(&self) -> Result<Option<Value>, CommandError> {
        Ok(self.options.as_deref().map(|text| json_value("options", text)).transpose()?)
    }
}

/// The first required key that is not given.
fn missing(protocol: Option<Protocol>, config: &Map<String, Value>) -> Option<&'static str> {
    let mut required = protocol.into_iter().flat_map(Protocol::keys).filter(|key| key.required);
    required.find(|key| !config.contains_key(key.name)).map(|key| key.name)
}

/// What is missing has a flag.
fn refused(error: StoreError, missing: Option<&str>) -> CommandError {
    let failure = CommandError::from(error);
    match missing.filter(|key| failure.field.as_deref() == Some(&format!("config.{key}"))) {
        Some("url") => failure.hint("--url https://example.org/hook says where its messages go"),
        Some("path") => failure.hint("--path orders.ndjson says which file they are appended to"),
        Some(key) => failure.hint(format!("--set {key}=… gives it; --help lists the keys of every protocol")),
        None => failure,
    }
}

fn json_value(field: &str, text: &str) -> Result<Value, Invalid> {
    fields::not_too_deep(field, text)?;
    let value =
        serde_json::from_str(text).map_err(|error| Invalid::new(field, format!("is not JSON: {error}")))?;
    fields::none_twice("", text.as_bytes()).map_err(|twice| Invalid::new(field, twice.to_string()))?;
    Ok(value)
}
