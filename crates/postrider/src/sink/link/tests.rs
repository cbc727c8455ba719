//! A link against a made-up broker, on paused time.

use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::*;

type OpenedOrNot = Result<OpenedLink<u32>, Undelivered>;

/// Answers each request to connect with what the test says next.
#[derive(Clone)]
struct MadeUpBroker {
    answers: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<OpenedOrNot>>>,
    asked: Arc<AtomicUsize>,
}

struct Script {
    answers: mpsc::UnboundedSender<OpenedOrNot>,
    asked: Arc<AtomicUsize>,
    next: u32,
}

impl Script {
    fn new() -> (Self, Arc<Link<u32>>, Environment) {
        let environment = Environment::default();
        let (script, link) = Self::for_link(&environment, "a");
        (script, link, environment)
    }

    fn for_link(environment: &Environment, config: &str) -> (Self, Arc<Link<u32>>) {
        let (answers, answered) = mpsc::unbounded_channel();
        let asked = Arc::new(AtomicUsize::new(0));
        let broker =
            MadeUpBroker { answers: Arc::new(tokio::sync::Mutex::new(answered)), asked: Arc::clone(&asked) };
        let key = LinkKey { protocol: "made-up", config: config.to_owned() };
        let opener = move |_: &Environment| Ok(broker.clone());
        let link = environment.links.shared(key, Duration::from_secs(5), environment, opener);
        (Self { answers, asked, next: 0 }, link)
    }

    /// The next connection, and what ends it.
    fn accepts(&mut self) -> oneshot::Sender<String> {
        let (end, ended) = oneshot::channel::<String>();
        self.next += 1;
        let lost = Box::pin(async { ended.await.unwrap_or_else(|_| "dropped".to_owned()) });
        let _ = self.answers.send(Ok(OpenedLink { client: self.next, lost }));
        end
    }

    fn refuses(&self) {
        let _ = self.answers.send(Err(Failure::retryable("refused").into()));
    }
}

#[async_trait]
impl OpenLink for MadeUpBroker {
    type Client = u32;

    async fn open(&self) -> Result<OpenedLink<u32>, Undelivered> {
        self.asked.fetch_add(1, Relaxed);
        match self.answers.lock().await.recv().await {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }
}

async fn number(link: &Link<u32>) -> Result<u32, Undelivered> {
    link.deliver(async |client| Ok(*client)).await
}

async fn unanswered(link: &Link<u32>) -> Result<u32, Undelivered> {
    link.deliver(async |_| std::future::pending().await).await
}

fn error(result: Result<u32, Undelivered>) -> String {
    match result.unwrap_err() {
        Undelivered::Failed(failure) => failure.error,
        Undelivered::Short(shortage) => panic!("{shortage}"),
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_opened_before_the_first_delivery_and_the_connection_is_kept() {
    let (mut script, link, _environment) = Script::new();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(link.connection(), SinkConnection::Idle);
    let _first = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(number(&link).await, Ok(1));
    assert_eq!(link.connection(), SinkConnection::Up);
}

#[tokio::test(start_paused = true)]
async fn while_it_is_down_deliveries_are_refused_at_once_and_it_comes_back_by_itself() {
    let (mut script, link, _environment) = Script::new();
    script.refuses();
    assert_eq!(error(number(&link).await), "refused");
    let asked = Instant::now();
    assert_eq!(error(number(&link).await), "refused");
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(link.connection(), SinkConnection::Down { error: "refused".to_owned() });
    let _second = script.accepts();
    sleep(PAUSE_MAX).await;
    assert_eq!(link.connection(), SinkConnection::Up);
}

#[tokio::test(start_paused = true)]
async fn pauses_between_tries_grow_to_a_limit() {
    let (script, link, _environment) = Script::new();
    (0..100).for_each(|_| script.refuses());
    let _ = number(&link).await;
    sleep(Duration::from_secs(60)).await;
    // 0.1, 0.2, 0.4, 0.8, 1.6 s, then 3 s each, give or take a fifth.
    let asked = script.asked.load(Relaxed);
    assert!((19..=31).contains(&asked), "{asked}");
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_ends_what_waits_on_it_and_is_opened_again_at_once() {
    let (mut script, link, _environment) = Script::new();
    let first = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    sleep(LASTED).await;
    let waiting = tokio::spawn({
        let link = Arc::clone(&link);
        async move { unanswered(&link).await }
    });
    sleep(Duration::from_millis(1)).await;
    let _second = script.accepts();
    first.send("reset by peer".to_owned()).unwrap();
    let why = "the connection was lost before the broker answered: reset by peer";
    let failure = Failure { ambiguous: true, ..Failure::retryable(why) };
    assert_eq!(waiting.await.unwrap(), Err(failure.into()));
    assert_eq!(number(&link).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_closes_every_connection_at_once_is_not_asked_without_pause() {
    let (mut script, link, _environment) = Script::new();
    script.accepts().send("no".to_owned()).unwrap();
    let mut tries = 0;
    while link.connection() != (SinkConnection::Down { error: "the connection did not last: no".to_owned() })
    {
        let _ = timeout(Duration::from_millis(1), number(&link)).await;
        tries += 1;
        assert!(tries < 100, "{:?}", link.connection());
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_on_which_nothing_is_answered_in_time_is_replaced() {
    let (mut script, link, _environment) = Script::new();
    let _first = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    sleep(LASTED).await;
    let silent = unanswered(&link);
    let _second = script.accepts();
    assert!(timeout(Duration::from_secs(10), silent).await.is_err());
    assert_eq!(number(&link).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn one_slow_answer_among_others_does_not_cost_the_connection() {
    let (mut script, link, _environment) = Script::new();
    let _first = script.accepts();
    let _second = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    let silent = unanswered(&link);
    let others = async {
        for _ in 0..20 {
            sleep(Duration::from_secs(1)).await;
            assert_eq!(number(&link).await, Ok(1));
        }
    };
    let (silent, ()) = tokio::join!(timeout(Duration::from_secs(10), silent), others);
    assert!(silent.is_err());
    assert_eq!(number(&link).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_delivery_that_is_dropped_at_once_does_not_cost_the_connection() {
    let (mut script, link, _environment) = Script::new();
    let (_first, _second) = (script.accepts(), script.accepts());
    assert_eq!(number(&link).await, Ok(1));
    let silent = unanswered(&link);
    assert!(timeout(Duration::from_millis(10), silent).await.is_err());
    assert_eq!(number(&link).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn equal_keys_share_a_connection_and_the_last_user_closes_it() {
    let (mut script, link, environment) = Script::new();
    let first = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    let (_unused, same) = Script::for_link(&environment, "a");
    assert!(Arc::ptr_eq(&link, &same));
    let (_unused, other) = Script::for_link(&environment, "b");
    assert!(!Arc::ptr_eq(&link, &other));
    drop(link);
    sleep(Duration::from_secs(1)).await;
    assert!(!first.is_closed());
    drop(same);
    sleep(Duration::from_secs(1)).await;
    assert!(first.is_closed());
}

#[tokio::test(start_paused = true)]
async fn an_unused_connection_is_let_go_and_opened_again_when_it_is_needed() {
    let (mut script, link, environment) = Script::new();
    let _first = script.accepts();
    assert_eq!(number(&link).await, Ok(1));
    environment.kept.let_go();
    sleep(Duration::from_millis(1)).await;
    assert_eq!(link.connection(), SinkConnection::Idle);
    let _second = script.accepts();
    assert_eq!(number(&link).await, Ok(2));
}

/// Every delivery is given up after half a second, as an endpoint with a short timeout does it.
#[tokio::test(start_paused = true)]
async fn a_silent_connection_is_replaced_however_short_the_timeouts_are() {
    let (mut script, link, _environment) = Script::new();
    let (_first, _second) = (script.accepts(), script.accepts());
    assert_eq!(number(&link).await, Ok(1));
    let begun = Instant::now();
    for _ in 0..11 {
        assert!(timeout(Duration::from_millis(500), unanswered(&link)).await.is_err());
    }
    assert!(begun.elapsed() < Duration::from_secs(6));
    assert_eq!(number(&link).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn one_short_timeout_in_a_pause_of_the_broker_costs_the_others_nothing() {
    let (mut script, link, _environment) = Script::new();
    let (_first, _second) = (script.accepts(), script.accepts());
    let answered = link.deliver(async |client| {
        sleep(Duration::from_secs(3)).await;
        Ok(*client)
    });
    let given_up = timeout(Duration::from_secs(2), unanswered(&link));
    let (answered, given_up) = tokio::join!(answered, given_up);
    assert!(given_up.is_err());
    assert_eq!(answered, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_cannot_take_messages_is_looked_for_anew() {
    let (mut script, link, _environment) = Script::new();
    let (_first, _second) = (script.accepts(), script.accepts());
    assert_eq!(number(&link).await, Ok(1));
    link.replace("it is a replica");
    assert_eq!(number(&link).await, Ok(1), "a new connection is left alone");
    sleep(LASTED).await;
    link.replace("it is a replica");
    assert_eq!(number(&link).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_away_and_not_wanted_is_not_asked_for_ever() {
    let (script, link, _environment) = Script::new();
    (0..1000).for_each(|_| script.refuses());
    let _ = number(&link).await;
    sleep(UNWANTED_AFTER + 2 * PAUSE_MAX).await;
    assert_eq!(link.connection(), SinkConnection::Idle);
    let asked = script.asked.load(Relaxed);
    sleep(Duration::from_secs(3600)).await;
    assert_eq!(script.asked.load(Relaxed), asked);
    assert_eq!(error(number(&link).await), "refused");
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_client_is_a_lost_connection() {
    let (mut script, link, _environment) = Script::new();
    let lost = Box::pin(async {
        sleep(Duration::from_secs(2)).await;
        panic!("as clients do")
    });
    let _ = script.answers.send(Ok(OpenedLink { client: 7, lost }));
    assert_eq!(number(&link).await, Ok(7));
    let _next = script.accepts();
    sleep(Duration::from_secs(3)).await;
    assert_eq!(number(&link).await, Ok(1));
}

/// Several deliveries ask for the connection at once; it is opened once, and let go for good.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_let_go_stays_closed_until_it_is_needed() {
    let (mut script, link, environment) = Script::new();
    let (_first, _second) = (script.accepts(), script.accepts());
    let together = tokio::join!(number(&link), number(&link), number(&link));
    assert_eq!(together, (Ok(1), Ok(1), Ok(1)));
    environment.kept.let_go();
    sleep(Duration::from_secs(1)).await;
    assert_eq!(link.connection(), SinkConnection::Idle);
    assert_eq!(script.asked.load(Relaxed), 1);
}
