//! A timer for a sequence of deadlines, each later than the one before.
//!
//! A timer that is created and dropped for each message is added to the runtime's timers and removed again. This timer
//! stays there, and is set again only when it fires.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
};

use tokio::time::{Instant, Sleep, sleep_until};

#[derive(Default)]
pub struct Alarm {
    /// Fires at the current deadline, or at an earlier one.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The deadline passed before the work ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Elapsed;

impl Alarm {
    /// The result of `work`, unless that takes until the deadline. Work that is ready at once is never late.
    ///
    /// # Errors
    /// When the work took longer.
    pub async fn timeout_at<T>(&mut self, deadline: Instant, work: impl Future<Output = T>) -> Result<T, Elapsed> {
        let mut work = pin!(work);
        poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(Ok(result));
            }
            let sleep = self.sleep.get_or_insert_with(|| Box::pin(sleep_until(deadline)));
            if sleep.deadline() > deadline {
                sleep.as_mut().reset(deadline);
            }
            while sleep.as_mut().poll(context).is_ready() {
                if sleep.deadline() >= deadline {
                    return Poll::Ready(Err(Elapsed));
                }
                sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, ready},
        time::Duration,
    };

    use tokio::time::sleep;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn each_deadline_ends_its_work_and_no_other() {
        let (mut alarm, began) = (Alarm::default(), Instant::now());
        assert_eq!(alarm.timeout_at(began + SECOND, sleep(SECOND / 2)).await, Ok(()));
        // The first deadline passes during this work.
        assert_eq!(alarm.timeout_at(began + 5 * SECOND, sleep(3 * SECOND)).await, Ok(()));
        assert_eq!(alarm.timeout_at(began + 6 * SECOND, pending::<()>()).await, Err(Elapsed));
        assert_eq!(began.elapsed().as_secs(), 6);
        assert_eq!(alarm.timeout_at(began + 7 * SECOND, pending::<()>()).await, Err(Elapsed));
        assert_eq!(began.elapsed().as_secs(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_deadline_is_kept_and_work_that_is_ready_is_never_late() {
        let (mut alarm, began) = (Alarm::default(), Instant::now());
        assert_eq!(alarm.timeout_at(began + 10 * SECOND, sleep(SECOND)).await, Ok(()));
        assert_eq!(alarm.timeout_at(began + 2 * SECOND, pending::<()>()).await, Err(Elapsed));
        assert_eq!(began.elapsed().as_secs(), 2);
        assert_eq!(alarm.timeout_at(began, ready(7)).await, Ok(7));
        assert_eq!(alarm.timeout_at(began, pending::<()>()).await, Err(Elapsed));
    }
}
