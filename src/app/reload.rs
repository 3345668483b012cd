//! Reads the configuration again, on SIGHUP and `POST /v1/reload`, and replaces the parts that differ. One at a time.

use std::{sync::Arc, time::Duration};

use tokio::{
    signal::unix::Signal,
    sync::{mpsc, oneshot},
    time::timeout,
};

use super::{
    differences::{Change, Differences, without_restart},
    instance::{Instance, Opened},
    listening::{self, Certificate},
    memory, settings, sources,
};
use crate::{
    api::{Api, Mistake, ReloadRequest, Reloaded},
    config::{Config, ConfigErrors, Problem},
    metrics,
};

/// Reads the configuration.
pub type Load = Arc<dyn Fn() -> Result<Config, ConfigErrors> + Send + Sync>;

/// Maximum time to read the files.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time that an answer waits until Redis knows new routes. After it the keeper goes on.
const PREPARE_TIMEOUT: Duration = Duration::from_secs(2);

pub struct Reloader {
    pub load: Load,
    pub instance: Arc<Instance>,
    pub api: Arc<Api>,
    /// `None` without TLS.
    pub certificate: Option<Certificate>,
    /// Labels of parts that were removed: their series are left out of the page of metrics.
    pub removed: Vec<String>,
}

impl Reloader {
    /// Runs forever.
    pub async fn run(mut self, requests: &mut mpsc::Receiver<ReloadRequest>, hangups: &mut Signal) {
        loop {
            let answer = tokio::select! {
                Some(request) = requests.recv() => Some(request.answer),
                Some(()) = hangups.recv() => None,
                else => return std::future::pending().await,
            };
            let result = self.reload().await;
            metrics::reloaded(result.is_ok());
            report(&result);
            if let Some(answer) = answer {
                // The caller may have disconnected.
                let _ = answer.send(result);
            }
        }
    }

    async fn reload(&mut self) -> Result<Reloaded, Vec<Mistake>> {
        let config = load(self.load.clone()).await?;
        let (digest, warnings) = (config.digest(), config.warnings.clone());
        let former = self.instance.config();
        let (config, restart) = without_restart(&former, config);
        let differences = Differences::between(Some(&former), &config);
        let opened = self.open(&config, &differences)?;
        if let Err(mistakes) = self.check_partitions(&config, &differences).await {
            discard(opened).await;
            return Err(mistakes);
        }
        if let (true, Some(certificate), Some(files)) = (differences.certificate, &self.certificate, &config.server.tls)
        {
            match listening::read(files) {
                Ok(settings) => certificate.replace(settings),
                Err(text) => {
                    discard(opened).await;
                    return Err(mistakes(&text));
                }
            }
        }
        let reloaded = Reloaded {
            digest: digest.to_string(),
            added: differences.paths(Change::Added),
            replaced: differences.paths(Change::Replaced),
            removed: differences.paths(Change::Removed),
            restart,
            warnings: warnings.iter().map(ToString::to_string).collect(),
        };
        let config = Arc::new(config);
        self.instance.replace(config.clone(), &differences, opened);
        if differences.auth {
            self.api.replace_tokens(config.server.auth.as_ref());
        }
        self.leave_out(&differences);
        memory::check(&config);
        metrics::config(digest.number(), !reloaded.restart.is_empty());
        self.instance.check_sinks(|name, _| differences.sinks.contains_key(name));
        if !differences.routes.is_empty() {
            // If it fails or takes longer, the keeper reports it and tries again.
            let prepared = timeout(PREPARE_TIMEOUT, self.instance.queue.prepare()).await;
            if !matches!(prepared, Ok(Ok(()))) {
                self.instance.incidents.suspect_redis();
            }
        }
        Ok(reloaded)
    }

    /// Makes the new sinks and sources, and checks all settings that only libraries can check.
    fn open(&self, config: &Config, differences: &Differences) -> Result<Opened, Vec<Mistake>> {
        let is_new = |change: Option<&Change>| change.is_some_and(|change| *change != Change::Removed);
        let sources = sources::all(config, self.instance.backend(), |name| is_new(differences.sources.get(name)));
        let sources = sources.map_err(|text| mistakes(&text))?;
        let sinks = settings::check_with_sinks(config, |name| is_new(differences.sinks.get(name)));
        Ok(Opened { sinks: sinks.map_err(|text| mistakes(&text))?, sources })
    }

    /// Checks that Redis would take the new routes. Without an answer of Redis they are taken later.
    async fn check_partitions(&self, config: &Config, differences: &Differences) -> Result<(), Vec<Mistake>> {
        let store = self.instance.queue.store();
        let mut found = Vec::new();
        for (name, _) in differences.routes.iter().filter(|(_, change)| **change == Change::Added) {
            match timeout(PREPARE_TIMEOUT, store.would_move(name, config.routes[name].partitions)).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.is_definite() => {
                    let path = vec!["routes".to_owned(), name.clone()];
                    found.push(Mistake { path, text: format!("routes.{name}: {error}") });
                }
                Ok(Err(_)) | Err(_) => break,
            }
        }
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn leave_out(&mut self, differences: &Differences) {
        let sections = [("sink", &differences.sinks), ("route", &differences.routes), ("source", &differences.sources)];
        for (label, changes) in sections {
            for (name, change) in changes {
                let label = format!("{label}=\"{name}\"");
                self.removed.retain(|other| *other != label);
                if *change == Change::Removed {
                    self.removed.push(label);
                }
            }
        }
        self.api.metrics.leave_out(self.removed.clone());
    }
}

/// A file system can block forever, and the end of the runtime waits for its own blocking threads.
async fn load(load: Load) -> Result<Config, Vec<Mistake>> {
    let (done, loading) = oneshot::channel();
    std::thread::spawn(move || {
        // Without a receiver the time is over.
        let _ = done.send(load());
    });
    match timeout(LOAD_TIMEOUT, loading).await {
        Ok(Ok(Ok(config))) => Ok(config),
        Ok(Ok(Err(errors))) => Err(errors
            .0
            .iter()
            .map(|one: &Problem| Mistake { path: one.path.0.clone(), text: one.to_string() })
            .collect()),
        _ => Err(mistakes(&format!("the files were not read within {LOAD_TIMEOUT:?}"))),
    }
}

/// The mistakes that only libraries find, one a line.
fn mistakes(text: &str) -> Vec<Mistake> {
    text.lines().map(|line| Mistake { path: Vec::new(), text: line.to_owned() }).collect()
}

/// Closes sinks that were made in vain.
async fn discard(opened: Opened) {
    for sink in opened.sinks.values() {
        sink.stop();
        sink.close().await;
    }
}

fn report(result: &Result<Reloaded, Vec<Mistake>>) {
    match result {
        Err(mistakes) => {
            for Mistake { text, .. } in mistakes {
                tracing::error!(mistake = text, "cannot load the configuration again: the old one stays");
            }
        }
        Ok(Reloaded { digest, added, replaced, removed, restart, warnings }) => {
            let shown = |paths: &[String]| (!paths.is_empty()).then(|| paths.join(", "));
            let (added, replaced, removed) = (shown(added), shown(replaced), shown(removed));
            tracing::info!(digest, added, replaced, removed, "loaded the configuration again");
            for warning in warnings {
                tracing::warn!("{warning}");
            }
            if let Some(settings) = shown(restart) {
                tracing::warn!(settings, "these settings take effect at the next start");
            }
        }
    }
}
