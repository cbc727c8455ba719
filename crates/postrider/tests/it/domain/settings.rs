use std::time::Duration;

use postrider::settings::{ArchiveMode, AttemptLog, CaptureResponse, SettingKind, Settings, TABLE};

/// Name, default, and the range where the contract gives one.
type Row = (&'static str, &'static str, Option<(u64, u64)>);

const CONTRACT: &[Row] = &[
    ("default_max_attempts", "11", Some((0, 1001))),
    ("retry_base_delay", "10", Some((1, 3600))),
    ("retry_max_delay", "300", Some((1, 86_400))),
    ("retry_increment", "30", Some((1, 3600))),
    ("circuit_breaker_threshold", "10", Some((1, 1000))),
    ("circuit_breaker_cooldown", "30", Some((5, 3600))),
    ("node_lease", "15", Some((5, 300))),
    ("stale_recovery_timeout", "300", Some((60, 3600))),
    ("max_queue_size", "1000000", None),
    ("max_payload_bytes", "1048576", Some((1024, 104_857_600))),
    ("max_headers_bytes", "16384", None),
    ("max_key_bytes", "256", None),
    ("max_batch_messages", "10000", None),
    ("max_fanout", "10000", None),
    ("dlq_retention_days", "30", Some((1, 3650))),
    ("dlq_max_bytes", "0", None),
    ("archive", "on", None),
    ("archive_retention_months", "6", Some((1, 120))),
    ("cleanup_interval", "3600", Some((10, 86_400))),
    ("attempt_log", "failures", None),
    ("capture_response", "off", None),
    ("response_body_max_bytes", "65536", None),
    ("idempotency_retention", "0", None),
    ("event_log_retention_days", "30", Some((1, 365))),
];

#[test]
fn names_defaults_and_ranges_are_those_of_the_contract() {
    for (name, default, range) in CONTRACT {
        let setting =
            TABLE.iter().find(|setting| setting.name == *name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!(setting.default, *default, "{name}");
        match (&setting.kind, range) {
            (SettingKind::Whole { min, max }, Some(range)) => assert_eq!((*min, *max), *range, "{name}"),
            (SettingKind::Choice(_), Some(_)) => panic!("{name} has a range in the contract"),
            (SettingKind::Whole { .. } | SettingKind::Choice(_), None) => {}
        }
    }
}

#[test]
fn every_setting_says_what_it_was_told() {
    let mut settings = Settings::default();
    for setting in TABLE {
        assert_eq!(settings.value(setting.name).as_deref(), Some(setting.default), "{}", setting.name);
        let other = match &setting.kind {
            SettingKind::Whole { max, .. } => max.to_string(),
            SettingKind::Choice(choices) => choices.last().unwrap().to_string(),
        };
        settings.apply(setting.name, &other).unwrap();
        assert_eq!(settings.value(setting.name), Some(other), "{}", setting.name);
    }
    assert_eq!(settings.value("colour"), None);
}

#[test]
fn the_choices_are_those_of_the_contract() {
    let table: [(&str, &[&str]); 3] = [
        ("archive", &["on", "metadata", "off"]),
        ("attempt_log", &["all", "failures", "off"]),
        ("capture_response", &["all", "failures", "off"]),
    ];
    for (name, expected) in table {
        let setting = TABLE.iter().find(|setting| setting.name == name).unwrap();
        let SettingKind::Choice(choices) = &setting.kind else { panic!("{name} is a choice") };
        assert_eq!(*choices, expected, "{name}");
    }
}

#[test]
fn the_defaults_are_the_ones_in_the_table() {
    let settings = Settings::default();
    let expected = Settings {
        default_max_attempts: 11,
        retry_base_delay: Duration::from_secs(10),
        retry_max_delay: Duration::from_secs(300),
        retry_increment: Duration::from_secs(30),
        circuit_breaker_threshold: 10,
        circuit_breaker_cooldown: Duration::from_secs(30),
        node_lease: Duration::from_secs(15),
        stale_recovery_timeout: Duration::from_secs(300),
        max_queue_size: 1_000_000,
        max_payload_bytes: 1_048_576,
        max_headers_bytes: 16_384,
        max_key_bytes: 256,
        max_batch_messages: 10_000,
        max_fanout: 10_000,
        dlq_retention_days: 30,
        dlq_max_bytes: 0,
        archive: ArchiveMode::On,
        archive_retention_months: 6,
        cleanup_interval: Duration::from_secs(3600),
        attempt_log: AttemptLog::Failures,
        capture_response: CaptureResponse::Off,
        response_body_max_bytes: 65_536,
        idempotency_retention: Duration::ZERO,
        event_log_retention_days: 30,
    };
    assert_eq!(settings, expected);
}

#[test]
fn what_is_out_of_range_is_refused_by_name_and_changes_nothing() {
    for setting in TABLE {
        let bad = match &setting.kind {
            SettingKind::Whole { min, max } => {
                let mut bad =
                    vec![(max + 1).to_string(), "ten".into(), "1.5".into(), "-1".into(), String::new()];
                bad.extend(min.checked_sub(1).map(|below| below.to_string()));
                bad.push("99999999999999999999999".into());
                bad
            }
            SettingKind::Choice(_) => vec!["ON".into(), String::new(), "0".into(), "on ".into()],
        };
        for value in bad {
            let mut settings = Settings::default();
            let refused = settings.apply(setting.name, &value).expect_err(setting.name);
            assert_eq!(refused.field, setting.name, "{value}");
            assert_eq!(settings, Settings::default(), "{} = {value}", setting.name);
        }
    }
}

#[test]
fn both_ends_of_every_range_are_accepted_and_take_effect() {
    for setting in TABLE {
        let values = match &setting.kind {
            SettingKind::Whole { min, max } => vec![min.to_string(), max.to_string()],
            SettingKind::Choice(choices) => choices.iter().map(|choice| (*choice).to_owned()).collect(),
        };
        for value in values {
            let mut settings = Settings::default();
            settings.apply(setting.name, &value).unwrap_or_else(|refused| panic!("{refused}"));
            assert_eq!(
                settings == Settings::default(),
                value == setting.default,
                "{} = {value}",
                setting.name
            );
        }
    }
}

#[test]
fn an_unknown_name_is_refused_with_the_list_of_known_ones() {
    let refused = Settings::default().apply("retry_delay", "1").unwrap_err();
    assert_eq!(refused.field, "retry_delay");
    for setting in TABLE {
        assert!(refused.rule.contains(setting.name), "{} is missing", setting.name);
    }
}
