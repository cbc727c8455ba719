//! What the `OTEL_*` variables say. What they ask for and cannot have is refused, never ignored. Values are not
//! repeated in errors: an endpoint or a header may hold a secret.

use std::time::Duration;

use http::Uri;

use crate::failure::CommandError;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"];
const COMPRESSIONS: [&str; 2] = ["OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"];
const TIMEOUTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"];
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
];

/// How a variable is read; an empty one is as good as none.
pub(super) struct Variables<F: Fn(&str) -> Option<String>>(pub(super) F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    pub(super) fn wants_traces(&self) -> Result<bool, CommandError> {
        if (self.0)("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(false);
        }
        match (self.0)("OTEL_TRACES_EXPORTER").as_deref() {
            Some("none") => Ok(false),
            Some("otlp") => Ok(true),
            Some(_) => Err(refused("OTEL_TRACES_EXPORTER", "must be otlp or none")),
            None => Ok(ENDPOINTS.iter().any(|name| (self.0)(name).is_some())),
        }
    }

    pub(super) fn check(&self) -> Result<(), CommandError> {
        for name in ENDPOINTS {
            (self.0)(name).map_or(Ok(()), |text| check_endpoint(name, &text))?;
        }
        for name in PROTOCOLS {
            if (self.0)(name).is_some_and(|text| text != "http/protobuf") {
                return Err(refused(name, "must be http/protobuf, which is the only one spoken here"));
            }
        }
        for name in COMPRESSIONS {
            if (self.0)(name).is_some_and(|text| text != "none") {
                return Err(refused(name, "must be none"));
            }
        }
        self.check_sampler()
    }

    fn check_sampler(&self) -> Result<(), CommandError> {
        let Some(sampler) = (self.0)("OTEL_TRACES_SAMPLER") else { return Ok(()) };
        if !SAMPLERS.contains(&sampler.as_str()) {
            return Err(refused("OTEL_TRACES_SAMPLER", &format!("must be one of {}", SAMPLERS.join(", "))));
        }
        let ratio = (self.0)("OTEL_TRACES_SAMPLER_ARG").map(|text| text.parse::<f64>());
        match ratio {
            None => Ok(()),
            Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(()),
            Some(_) => Err(refused("OTEL_TRACES_SAMPLER_ARG", "must be a number from 0 to 1")),
        }
    }

    pub(super) fn timeout(&self) -> Result<Duration, CommandError> {
        match TIMEOUTS.iter().find_map(|name| Some((name, (self.0)(name)?))) {
            None => Ok(TIMEOUT_DEFAULT),
            Some((name, text)) => match text.parse() {
                Ok(milliseconds) if milliseconds > 0 => Ok(Duration::from_millis(milliseconds)),
                _ => Err(refused(name, "must be a number of milliseconds, at least 1")),
            },
        }
    }

    pub(super) fn names_the_service(&self) -> bool {
        let attributes = (self.0)("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
        (self.0)("OTEL_SERVICE_NAME").is_some()
            || attributes.split(',').any(|pair| pair.trim_start().starts_with("service.name="))
    }
}

fn check_endpoint(name: &str, text: &str) -> Result<(), CommandError> {
    let uri: Uri = text.parse().map_err(|_| refused(name, "is not a URL"))?;
    if !matches!(uri.scheme_str(), Some("http" | "https")) {
        return Err(refused(name, "must begin with http:// or https://"));
    }
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => Err(refused(
            name,
            "must not contain a user name or password; put a header into OTEL_EXPORTER_OTLP_HEADERS",
        )),
        Some(_) => Ok(()),
        None => Err(refused(name, "must have a host")),
    }
}

fn refused(name: &str, rule: &str) -> CommandError {
    CommandError::usage(format!("{name}: {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(variables: &[(&str, &str)]) -> Result<bool, String> {
        let read = |wanted: &str| {
            variables.iter().find(|(name, _)| *name == wanted).map(|(_, text)| (*text).to_owned())
        };
        let environment = Variables(read);
        let wants = environment.wants_traces().map_err(|failure| failure.error)?;
        environment.check().and(environment.timeout().map(drop)).map_err(|failure| failure.error)?;
        Ok(wants)
    }

    #[test]
    fn traces_are_made_when_the_environment_asks_for_them() {
        let at = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318");
        let cases: [(&[(&str, &str)], bool); 6] = [
            (&[], false),
            (&[("OTEL_SERVICE_NAME", "shop")], false),
            (&[at], true),
            (&[at, ("OTEL_SDK_DISABLED", "TRUE")], false),
            (&[at, ("OTEL_TRACES_EXPORTER", "none")], false),
            (&[("OTEL_TRACES_EXPORTER", "otlp")], true),
        ];
        for (variables, wanted) in cases {
            assert_eq!(outcome(variables), Ok(wanted), "{variables:?}");
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name_and_without_its_value() {
        let cases = [
            ("OTEL_TRACES_EXPORTER", "hunter2"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "hunter2"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:hunter2@localhost:4318"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://hunter2"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_TRACES_SAMPLER", "hunter2"),
        ];
        for (name, value) in cases {
            let refusal = outcome(&[(name, value)]).expect_err(name);
            assert!(refusal.starts_with(name) && !refusal.contains("hunter2"), "{refusal}");
        }
        let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
        assert!(outcome(&ratio).is_err());
    }
}
