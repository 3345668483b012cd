//! The export of spans of one instance.

use std::time::Duration;

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use crate::{
    config::Config,
    incidents::Incidents,
    spans::{Exporter, Spans},
};

/// Maximum time of the last export, which a collector that hangs takes from every stop.
const LAST_EXPORT: Duration = Duration::from_secs(2);

/// The recorder of spans and its exporter, if they are configured.
///
/// # Errors
/// The setting that cannot be used.
pub fn open(config: &Config, incidents: &Incidents) -> Result<(Spans, Option<Exporter>), String> {
    let Some(settings) = &config.tracing else { return Ok((Spans::default(), None)) };
    let opened = Exporter::open(settings, incidents).map_err(|error| format!("tracing.otlp: {error}"));
    opened.map(|(spans, exporter)| (spans, Some(exporter)))
}

/// # Errors
/// Those of `open`.
pub fn check_settings(config: &Config) -> Result<(), String> {
    open(config, &Incidents::default()).map(drop)
}

/// The running exporter.
pub struct Exporting {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Exporting {
    /// Must be called within a tokio runtime.
    pub fn start(exporter: Exporter) -> Self {
        let (stop, mut stopped) = watch::channel(false);
        let asked = async move { drop(stopped.wait_for(|stop| *stop).await) };
        Self { stop, task: tokio::spawn(exporter.run(asked)) }
    }

    /// Exports the spans that wait, until `deadline` at the latest.
    pub async fn finish(mut self, deadline: Instant) {
        self.stop.send_replace(true);
        if timeout_at(deadline.min(Instant::now() + LAST_EXPORT), &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!("the last spans were not exported in time");
        }
    }
}
