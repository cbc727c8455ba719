//! `postrider event …`: event types, and who subscribes to them.

use clap::{Args, Subcommand};
use postrider::{EventType, Invalid, Json, NewEventType, NewSubscription, Operate, Subscribed, Subscription};
use serde::Serialize;
use serde_json::json;

use crate::failure::CommandError;
use crate::output::Output;
use crate::place::StoreOrNode;

/// How many are read at a time when all are listed.
const PAGE: usize = 500;

#[derive(Subcommand)]
pub(crate) enum EventCommand {
    /// Make an event type: postrider event create orders.created --description 'An order was placed'
    Create(CreateEventTypeArgs),
    /// List all event types
    List,
    /// Show one event type, with its schema
    Show { name: String },
    /// Remove an event type; its subscriptions stay
    Drop { name: String },
    /// Subscribe an endpoint to matching events: postrider event subscribe 'orders.*' shop
    Subscribe(SubscribeArgs),
    /// List all subscriptions
    Subscriptions,
    /// Remove a subscription
    Unsubscribe {
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Let a subscription have events again
    Enable {
        #[arg(value_parser = super::id)]
        id: i64,
    },
    /// Let a subscription have no events
    Disable {
        #[arg(value_parser = super::id)]
        id: i64,
    },
}

#[derive(Args)]
pub(crate) struct CreateEventTypeArgs {
    /// Letters, digits, '-' and '_', in segments with a '.' between them
    name: String,
    /// What it means
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// JSON Schema that every event of this type has to keep
    #[arg(long, value_name = "JSON")]
    schema: Option<String>,
}

#[derive(Args)]
pub(crate) struct SubscribeArgs {
    /// An event type, 'orders.*' for one or more segments after it, or '*' for everything
    pattern: String,
    /// Name of the endpoint that gets them
    endpoint: String,
    /// Only events that contain this JSON, such as {"country":"SE"}
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// What is sent instead of the event, as JSON; "{{/total}}" becomes the event's value at /total
    #[arg(long, value_name = "JSON")]
    template: Option<String>,
}

pub(super) async fn run(
    command: EventCommand,
    place: &StoreOrNode,
    output: Output,
) -> Result<(), CommandError> {
    let store = place.open_tool().await?;
    match command {
        EventCommand::Create(CreateEventTypeArgs { name, description, schema }) => {
            let schema = schema.map(|text| rule("schema", &text)).transpose()?;
            let made = store.create_event_type(NewEventType { name, description, schema }).await?;
            show(&made, output, || format!("created event type {}", made.name))?;
        }
        EventCommand::List => list_types(&*store, output).await?,
        EventCommand::Show { name } => {
            let found = store.event_type(&name).await?;
            show(&found, output, || serde_json::to_string_pretty(&found).expect("records become JSON"))?;
        }
        EventCommand::Drop { name } => {
            store.drop_event_type(&name).await?;
            done("event_type", &name, "dropped", output)?;
        }
        EventCommand::Subscribe(arguments) => {
            let SubscribeArgs { pattern, endpoint, filter, template } = arguments;
            let filter = filter.map(|text| rule("filter", &text)).transpose()?;
            let template = template.map(|text| rule("template", &text)).transpose()?;
            let new = NewSubscription { pattern, endpoint, filter, template };
            let Subscribed { subscription: one, existed } = store.subscribe(new).await?;
            let note = match (existed, one.enabled) {
                (false, _) => "",
                (true, true) => " (it existed already)",
                (true, false) => " (it existed already, and is disabled)",
            };
            let text = || format!("subscription {}: {} gets {}{note}", one.id, one.endpoint, one.pattern);
            show(&Made { subscription: &one, existed }, output, text)?;
        }
        EventCommand::Subscriptions => list_subscriptions(&*store, output).await?,
        EventCommand::Unsubscribe { id } => {
            store.unsubscribe(id).await?;
            done("subscription", &id.to_string(), "dropped", output)?;
        }
        EventCommand::Enable { id } => {
            store.set_subscription_enabled(id, true).await?;
            done("subscription", &id.to_string(), "enabled", output)?;
        }
        EventCommand::Disable { id } => {
            store.set_subscription_enabled(id, false).await?;
            done("subscription", &id.to_string(), "disabled", output)?;
        }
    }
    Ok(())
}

async fn list_types(store: &dyn Operate, output: Output) -> Result<(), CommandError> {
    let mut types: Vec<EventType> = Vec::new();
    loop {
        let after = types.last().map(|last| last.name.clone());
        let page = store.event_types(after.as_deref(), PAGE).await?;
        let is_last = page.len() < PAGE;
        types.extend(page);
        if is_last {
            break;
        }
    }
    list(&types, output, "no event types yet; `postrider event create` makes one", || {
        let row = |one: &EventType| {
            let schema = if one.schema.is_some() { "checked" } else { "-" };
            vec![one.name.clone(), schema.to_owned(), one.description.clone().unwrap_or("-".to_owned())]
        };
        output.table(&["event type", "schema", "description"], types.iter().map(row).collect())
    })
}

async fn list_subscriptions(store: &dyn Operate, output: Output) -> Result<(), CommandError> {
    let mut subscriptions: Vec<Subscription> = Vec::new();
    loop {
        let page = store.subscriptions(subscriptions.last().map(|last| last.id), PAGE).await?;
        let is_last = page.len() < PAGE;
        subscriptions.extend(page);
        if is_last {
            break;
        }
    }
    list(&subscriptions, output, "no subscriptions yet; `postrider event subscribe` makes one", || {
        let text = |json: &Option<Json>| json.as_ref().map_or("-".to_owned(), ToString::to_string);
        let row = |one: &Subscription| {
            let state = if one.enabled { "enabled" } else { "disabled" };
            let (filter, template) = (text(&one.filter), text(&one.template));
            vec![
                one.id.to_string(),
                one.pattern.clone(),
                one.endpoint.clone(),
                state.into(),
                filter,
                template,
            ]
        };
        let header = ["id", "pattern", "endpoint", "state", "filter", "template"];
        output.table(&header, subscriptions.iter().map(row).collect())
    })
}

/// In the shape of the API.
fn list<T: Serialize>(
    items: &[T],
    output: Output,
    nothing: &str,
    table: impl FnOnce() -> String,
) -> Result<(), CommandError> {
    #[derive(Serialize)]
    struct List<'a, T> {
        items: &'a [T],
        next: Option<()>,
    }
    output.document(
        || serde_json::to_string(&List { items, next: None }).expect("records become JSON"),
        || if items.is_empty() { nothing.to_owned() } else { table() },
    )
}

/// A subscription, and whether it existed before the command.
#[derive(Serialize)]
struct Made<'a> {
    #[serde(flatten)]
    subscription: &'a Subscription,
    existed: bool,
}

fn show(shown: &impl Serialize, output: Output, text: impl FnOnce() -> String) -> Result<(), CommandError> {
    output.document(|| serde_json::to_string(shown).expect("records become JSON"), text)
}

fn done(what: &str, name: &str, done: &str, output: Output) -> Result<(), CommandError> {
    output.document(
        || json!({ what: name, "done": done }).to_string(),
        || format!("{} {name} is {done}", what.replace('_', " ")),
    )
}

fn rule(field: &str, text: &str) -> Result<Json, Invalid> {
    Json::parse(text.as_bytes()).map_err(|rule| Invalid::new(field, rule))
}
