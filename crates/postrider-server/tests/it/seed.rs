//! What a random run draws from. The seed is printed; `POSTRIDER_TEST_SEED` gives it again, and `POSTRIDER_TEST_RUNS`
//! asks for more runs than one, each with the next seed. Threads and kills fall differently in time even so.

use std::hash::{DefaultHasher, Hash, Hasher};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Seed(u64);

impl Seed {
    /// One for each run that is asked for.
    pub(crate) fn runs() -> impl Iterator<Item = Self> {
        let asked = |name: &str| {
            let value = std::env::var(name).ok()?;
            Some(value.parse::<u64>().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
        };
        let first =
            asked("POSTRIDER_TEST_SEED").unwrap_or_else(|| rand::rng().random_range(0..1_000_000_000));
        (0..asked("POSTRIDER_TEST_RUNS").unwrap_or(1)).map(move |run| {
            println!("POSTRIDER_TEST_SEED={}", first + run);
            Self(first + run)
        })
    }

    /// The dice of one of several who draw at once.
    pub(crate) fn dice(self, who: impl Hash) -> SmallRng {
        let mut hasher = DefaultHasher::new();
        (self.0, who).hash(&mut hasher);
        SmallRng::seed_from_u64(hasher.finish())
    }

    /// The same for the same question, whatever was asked before.
    pub(crate) fn says_yes(self, question: impl Hash, probability: f64) -> bool {
        self.dice(question).random_bool(probability)
    }
}
