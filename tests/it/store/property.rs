//! Random sequences of every operation, on Redis and in memory.

use proptest::test_runner::{Config, TestCaseError, TestRunner};

use super::{bench::Bench, case::Case, operation::sequence};

/// Sequences of up to 60 steps; `PROPTEST_CASES` asks for more.
const CASES: u32 = 100;
/// Attempts to make a sequence that failed shorter; `PROPTEST_MAX_SHRINK_ITERS` asks for another number.
const SHRINKS: u32 = 2000;

#[test]
fn redis_and_the_in_memory_store_agree_on_every_sequence_of_operations() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut bench = runtime.block_on(Bench::start());
    let default = Config::default();
    let asked = |name| std::env::var_os(name).is_some();
    let cases = if asked("PROPTEST_CASES") { default.cases } else { CASES };
    let max_shrink_iters = if asked("PROPTEST_MAX_SHRINK_ITERS") { default.max_shrink_iters } else { SHRINKS };
    let config = Config { cases, failure_persistence: None, max_shrink_iters, ..default };
    let bench = std::cell::RefCell::new(&mut bench);
    let result = TestRunner::new(config).run(&sequence(), |steps| {
        let mut bench = bench.borrow_mut();
        runtime.block_on(async { Case::new(&mut bench).await.run(&steps).await });
        Ok::<(), TestCaseError>(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
