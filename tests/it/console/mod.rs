//! The operator's console in a real browser, on a real punctual with real sinks. Each test is a script in `tests/console/`,
//! which asks its stage for what it needs.

mod calls;
mod files;
mod stage;

use std::time::Duration;

use self::stage::Stage;
use crate::program::alone;

/// Maximum run time of a script.
const MAX_WAIT: Duration = Duration::from_mins(4);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn every_view_is_sound_in_light_and_dark_wide_and_narrow_and_by_keyboard() {
    Stage::start().await.play("views.js").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn every_action_does_what_it_says_and_only_with_its_right() {
    Stage::start().await.play("actions.js").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_development_clock_and_the_inbox_are_shown_and_used() {
    Stage::start().await.play("development.js").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_of_others_are_shown_as_they_are_and_never_run() {
    Stage::start().await.play("payloads.js").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn wrong_tokens_outages_and_a_prefix_are_shown_and_survived() {
    Stage::start().await.play("trouble.js").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_gets_through_the_night_with_the_page_alone() {
    Stage::start().await.play("night.js").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn a_hundred_routes_and_thousands_of_dead_letters_are_shown_without_a_stall() {
    let _alone = alone().await;
    Stage::start_with(100).await.play("crowd.js").await;
}
