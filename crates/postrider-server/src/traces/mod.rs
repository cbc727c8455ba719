//! Traces over OTLP, when the variables that OpenTelemetry defines ask for them. Without them nothing is made.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use postrider::trace::Tracer;
use postrider::trace::opentelemetry::global::BoxedTracer;

use self::environment::Variables;
use self::post::Post;
use crate::failure::CommandError;

mod environment;
mod post;

const SERVICE: &str = "postrider";
/// How long a clean stop waits for the last spans.
const LAST_SPANS: Duration = Duration::from_secs(2);

pub(crate) struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// None when the environment does not ask for traces. Within a runtime: exporting uses it.
    pub(crate) fn from_environment() -> Result<Option<Self>, CommandError> {
        let environment = Variables(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
        if !environment.wants_traces()? {
            return Ok(None);
        }
        environment.check()?;
        // Endpoint, headers and timeout are read from the environment by the exporter, sampler and limits by the
        // provider. What is wrong with them may hold a secret, so only its kind is said.
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Post::new(environment.timeout()?)?)
            .build()
            .map_err(|_| {
                CommandError::usage("the OTEL_EXPORTER_OTLP_* variables are not what this exporter can use")
                    .hint(
                        "it speaks http/protobuf without compression; docs/operations.md lists the variables",
                    )
            })?;
        let mut resource = Resource::builder();
        if !environment.names_the_service() {
            resource = resource.with_service_name(SERVICE);
        }
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build())
            .build();
        Ok(Some(Self { provider }))
    }

    pub(crate) fn tracer(&self) -> Tracer {
        Tracer::new(BoxedTracer::new(Box::new(self.provider.tracer(SERVICE))))
    }

    /// Exports what is left, if the collector takes it.
    pub(crate) async fn stop(self) {
        let stopped =
            tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(LAST_SPANS)).await;
        if !matches!(stopped, Ok(Ok(()))) {
            tracing::debug!("the last spans were not exported");
        }
    }
}
