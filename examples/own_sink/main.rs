//! A program that embeds punctual and brings its own sink: messages become lines of a file.
//!
//! `own_sink CONFIGURATION`: serves like `punctual serve -c CONFIGURATION`, with the sink type `file` in addition.

use std::{env, error::Error, path::PathBuf, sync::Arc, time::Duration};

use punctual::{
    Context, Delivery, OpenSink, Outcome, Path, Problems, Report, Settings, Sink, SinkSettings, Sources, Whole, load,
    registry, serve,
};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::{
    fs::{File, OpenOptions},
    io::AsyncWriteExt,
    sync::Mutex,
    time::timeout,
};

/// Appends each payload as one line to a file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileSettings {
    /// Created if it does not exist.
    path: PathBuf,
    /// Maximum time of one batch, in seconds: 1 to 20.
    timeout_seconds: Whole<1, 20>,
}

impl Settings for FileSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        if self.path.as_os_str().is_empty() {
            problems.add(&at.key("path"), "is empty");
        }
    }
}

impl SinkSettings for FileSettings {
    fn kind(&self) -> &'static str {
        "file"
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.0)
    }

    fn open(&self) -> Result<OpenSink, String> {
        Ok(OpenSink::new(FileSink { path: self.path.clone(), timeout: self.timeout(), file: Mutex::default() }))
    }
}

struct FileSink {
    path: PathBuf,
    timeout: Duration,
    /// Opened by the first batch.
    file: Mutex<Option<File>>,
}

impl FileSink {
    /// Returns when the file system has stored all lines.
    async fn append(&self, batch: &[Delivery]) -> std::io::Result<()> {
        let mut open = self.file.lock().await;
        let mut file = match open.take() {
            Some(file) => file,
            None => OpenOptions::new().create(true).append(true).open(&self.path).await?,
        };
        for delivery in batch {
            file.write_all(&[&delivery.payload[..], b"\n"].concat()).await?;
        }
        file.sync_data().await?;
        *open = Some(file);
        Ok(())
    }
}

#[punctual::async_trait]
impl Sink for FileSink {
    fn timeout(&self) -> Duration {
        self.timeout
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        let outcome = match timeout(self.timeout, self.append(&batch)).await {
            Ok(Ok(())) => Outcome::Confirmed,
            Ok(Err(error)) => Outcome::Unavailable { error: error.to_string() },
            Err(_) => Outcome::Unavailable { error: format!("not written within {:?}", self.timeout) },
        };
        for index in 0..batch.len() {
            report.outcome(index, outcome.clone());
        }
    }

    async fn check(&self) -> Result<(), String> {
        self.append(&[]).await.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os().nth(1).ok_or("usage: own_sink CONFIGURATION")?;
    let mut registry = registry();
    registry.sink::<FileSettings>("file");
    let sources = Sources::of_process(vec![file.into()], None);
    // Called again on SIGHUP and `POST /v1/reload`.
    let read = Arc::new(move || load(&sources, &registry));
    Ok(serve(read()?, read).await?)
}
