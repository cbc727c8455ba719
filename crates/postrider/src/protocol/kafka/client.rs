//! A producer, what it is given, and how it is dropped.

use std::sync::Arc;
use std::time::Duration;

use krafka::error::KrafkaError;
use krafka::producer::{Acks, Producer, Record, RecordMetadata};
use krafka::{CloseOptions, Compression, Kafka};
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::{Instant, timeout_at};

use super::config::{KafkaCompression, ProducerConfig};
use super::passage::Passage;

/// Kafka's brokers take no larger request.
pub(super) const REQUEST_BYTES_MAX: usize = 100 << 20;
/// Records of one partition that wait while a batch is under way go together in the next, up to this size.
pub(super) const BATCH_BYTES_MAX: usize = 64 << 10;
/// Room for the attempts of a node with messages of 1 MiB. Larger ones wait for room, as long as for their topic.
const BUFFER_BYTES_MAX: usize = 1 << 30;
/// How long a delivery waits for the metadata of its topic. A topic that exists is known after one round trip.
const TOPIC_WAIT: Duration = Duration::from_secs(2);

pub(super) struct KafkaClient {
    kafka: Kafka,
    config: ProducerConfig,
    producer: Arc<Producer>,
    /// Gives every record a batch of its own. Made when a batch is too large for the first time.
    single: OnceCell<Arc<Producer>>,
    passage: Passage,
}

impl KafkaClient {
    pub(super) fn new(kafka: Kafka, config: ProducerConfig, producer: Producer, passage: Passage) -> Self {
        Self { kafka, config, producer: Arc::new(producer), single: OnceCell::new(), passage }
    }

    /// In a batch with others. Not sent unless the producer has it at `hand_over`.
    pub(super) async fn send(
        &self,
        record: Record,
        hand_over: Instant,
    ) -> Result<RecordMetadata, KrafkaError> {
        self.send_by(&self.producer, record, hand_over).await
    }

    /// So that the answer is about this record and no other.
    pub(super) async fn send_single(
        &self,
        record: Record,
        hand_over: Instant,
    ) -> Result<RecordMetadata, KrafkaError> {
        let make = async || producer(&self.kafka, &self.config, 1).await.map(Arc::new);
        let producer = until(hand_over, self.single.get_or_try_init(make)).await?;
        self.send_by(producer, record, hand_over).await
    }

    async fn send_by(
        &self,
        producer: &Producer,
        record: Record,
        hand_over: Instant,
    ) -> Result<RecordMetadata, KrafkaError> {
        let sent = match until(hand_over, producer.enqueue(record)).await {
            Ok(queued) => queued.await,
            Err(error) => Err(error),
        };
        if let Err(error) = &sent
            && error.is_fatal()
        {
            self.passage.lose(format!("the producer cannot be used any more: {error}"));
        }
        sent
    }
}

/// A step that may be dropped, and is not begun too late.
async fn until<T>(
    end: Instant,
    step: impl Future<Output = Result<T, KrafkaError>>,
) -> Result<T, KrafkaError> {
    let late = || KrafkaError::timeout("the first half of the attempt");
    if Instant::now() >= end {
        return Err(late());
    }
    timeout_at(end, step).await.map_err(|_| late())?
}

/// A dropped producer would go on to send what it holds. Its connections are cut first, so that nothing leaves.
impl Drop for KafkaClient {
    fn drop(&mut self) {
        self.passage.cut();
        let Ok(runtime) = Handle::try_current() else { return };
        for producer in std::iter::once(&self.producer).chain(self.single.get()) {
            let producer = Arc::clone(producer);
            runtime.spawn(async move {
                let _ = producer.close_with(CloseOptions::new().timeout(Duration::ZERO)).await;
            });
        }
    }
}

/// One whose batches are not larger, unless one record is.
pub(super) async fn producer(
    kafka: &Kafka,
    config: &ProducerConfig,
    batch_bytes_max: usize,
) -> Result<Producer, KrafkaError> {
    let compression = match config.compression {
        KafkaCompression::None => Compression::None,
        KafkaCompression::Gzip => Compression::Gzip,
        KafkaCompression::Snappy => Compression::Snappy,
        KafkaCompression::Lz4 => Compression::Lz4,
        KafkaCompression::Zstd => Compression::Zstd,
    };
    kafka
        .producer()
        .acks(Acks::All)
        .idempotent(config.idempotence)
        .compression(compression)
        // A batch is sent at once if its partition has none under way.
        .linger(Duration::ZERO)
        .batch_size(batch_bytes_max)
        .max_request_size(REQUEST_BYTES_MAX)
        .buffer_memory(BUFFER_BYTES_MAX)
        .max_block(TOPIC_WAIT)
        .delivery_timeout(config.patience)
        .metrics_push(false)
        .build()
        .await
}
