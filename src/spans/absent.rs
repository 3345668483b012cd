//! The exporter of a build without the feature `otlp`.

use std::convert::Infallible;

use super::{ExportSettings, Spans};
use crate::incidents::Incidents;

pub struct Exporter(Infallible);

impl Exporter {
    /// # Errors
    /// Always. The configuration of such a build has no endpoint.
    pub fn open(_: &ExportSettings, _: &Incidents) -> Result<(Spans, Self), String> {
        Err("this build has no otlp".into())
    }

    #[expect(clippy::unused_async, reason = "the exporter of a build with the feature waits")]
    pub async fn run(self, _: impl Future<Output = ()>) {
        match self.0 {}
    }
}
