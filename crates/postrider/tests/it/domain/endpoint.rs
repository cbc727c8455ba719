use postrider::endpoint::{
    CheckedEndpoint, Durability, EndpointOptions, KeyScope, NAME_BYTES_MAX, NewEndpoint, OnDead, check_name,
};
use postrider::rate::{Interval, RateLimit};
use postrider::settings::Settings;
use postrider::{Invalid, State};
use serde_json::{Value, json};

fn new_endpoint(change: impl FnOnce(&mut NewEndpoint)) -> Result<CheckedEndpoint, Invalid> {
    let mut endpoint = NewEndpoint {
        name: "orders".into(),
        protocol: "http".into(),
        config: json!({"url": "https://example.com/hook"}).as_object().unwrap().clone(),
        retry_policy: None,
        options: None,
    };
    change(&mut endpoint);
    endpoint.check(&Settings::default())
}

#[test]
fn options_take_their_defaults_and_every_key() {
    let defaults = EndpointOptions::check(None).unwrap();
    assert_eq!(defaults, EndpointOptions::default());
    assert_eq!(EndpointOptions::check(Some(&Value::Null)).unwrap(), defaults);
    assert_eq!(EndpointOptions::check(Some(&json!({}))).unwrap(), defaults);
    assert_eq!((defaults.on_dead, defaults.key_scope), (OnDead::Continue, KeyScope::Endpoint));
    assert_eq!(defaults.durability, Durability::Durable);

    let all = json!({"durability": "durable", "max_in_flight": 7, "on_dead": "hold", "key_scope": "global",
        "rate_limit": {"limit": 5, "interval": "minute", "burst": 2}, "max_queue_size": 9});
    let options = EndpointOptions::check(Some(&all)).unwrap();
    assert_eq!(options.max_in_flight, Some(7));
    assert_eq!((options.on_dead, options.key_scope), (OnDead::Hold, KeyScope::Global));
    assert_eq!(options.rate_limit, Some(RateLimit { limit: 5, interval: Interval::Minute, burst: Some(2) }));
    assert_eq!(options.max_queue_size, Some(9));
}

#[test]
fn a_bad_option_is_refused_by_the_name_of_its_field() {
    let table = [
        (json!(1), "options"),
        (json!({"max_in_flight": 0}), "options.max_in_flight"),
        (json!({"max_in_flight": 10_001}), "options.max_in_flight"),
        (json!({"max_in_flight": "64"}), "options.max_in_flight"),
        (json!({"rate_limit": {"limit": 0, "interval": "second"}}), "options.rate_limit.limit"),
        (json!({"rate_limit": {"limit": 1}}), "options.rate_limit.interval"),
        (json!({"on_dead": "stop"}), "options.on_dead"),
        (json!({"on_dead": {"hold": null}}), "options.on_dead"),
        (json!({"key_scope": "Global"}), "options.key_scope"),
        (json!({"key_scope": {"global": null}}), "options.key_scope"),
        (json!({"rate_limit": {"limit": 1, "interval": {"second": null}}}), "options.rate_limit.interval"),
        (json!({"max_queue_size": -1}), "options.max_queue_size"),
        (json!({"durability": "maybe"}), "options.durability"),
        (json!({"durability": {"durable": null}}), "options.durability"),
        (json!({"timeout": 5}), "options.timeout"),
    ];
    for (raw, field) in table {
        assert_eq!(EndpointOptions::check(Some(&raw)).expect_err(field).field, field, "{raw}");
        let refused = new_endpoint(|endpoint| endpoint.options = Some(raw.clone())).expect_err(field);
        assert_eq!(refused.field, field, "{raw}");
    }
}

#[test]
fn an_unknown_option_is_refused_with_the_list_of_known_ones() {
    let refused = EndpointOptions::check(Some(&json!({"speed": 1}))).unwrap_err();
    for known in ["durability", "max_in_flight", "rate_limit", "on_dead", "key_scope", "max_queue_size"] {
        assert!(refused.rule.contains(known), "{known} is missing in: {}", refused.rule);
    }
}

#[test]
fn a_name_is_short_and_plain() {
    let longest = "x".repeat(NAME_BYTES_MAX);
    for good in ["a", "orders-eu.v2_test", &longest] {
        check_name(good).unwrap_or_else(|refused| panic!("{good}: {refused}"));
    }
    let too_long = "x".repeat(NAME_BYTES_MAX + 1);
    for bad in ["", "with space", "a/b", "ä", "a\n", "a'b", &too_long] {
        assert_eq!(check_name(bad).expect_err(bad).field, "name", "{bad:?}");
    }
}

#[test]
fn each_bad_field_of_an_endpoint_is_named() {
    new_endpoint(|_| {}).expect("the example is valid");
    let field = |change: &dyn Fn(&mut NewEndpoint)| new_endpoint(change).expect_err("must be refused").field;
    assert_eq!(field(&|endpoint| endpoint.name = "a b".into()), "name");
    assert_eq!(field(&|endpoint| endpoint.protocol = "smtp".into()), "protocol");
    assert_eq!(field(&|endpoint| endpoint.retry_policy = Some(json!({"jitter": 2}))), "retry_policy.jitter");
    for seconds in [300, 301, 10_000] {
        let field = field(&|endpoint| drop(endpoint.config.insert("timeout".into(), json!(seconds))));
        assert_eq!(field, "config.timeout", "{seconds} is not below stale_recovery_timeout");
    }
    new_endpoint(|endpoint| drop(endpoint.config.insert("timeout".into(), json!(299)))).unwrap();
}

#[test]
fn states_are_written_as_people_read_them() {
    for state in State::ALL {
        assert_eq!(serde_json::to_value(state).unwrap(), json!(state.as_str()));
        assert_eq!(state.to_string(), state.as_str());
    }
}
