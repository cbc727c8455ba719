//! Random lives: whatever happened to the store before, it goes on after the move as the model says.

use proptest::prelude::*;

use super::super::model::{self, Operation};

/// Each case has a database of its own.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(4)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 40, ..ProptestConfig::default() })]
    #[test]
    fn every_life_goes_on_as_in_the_model(before in model::operations(), after in model::operations()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run(before, after));
    }
}

async fn run(before: Vec<Operation>, after: Vec<Operation>) {
    model::run_and_move(before, super::state::moved, after).await;
}
