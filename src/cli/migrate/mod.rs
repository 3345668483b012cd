//! `punctual migrate rabbitmq EXPORT`: from a broker with the delayed-message exchange plugin to a broker without it.

mod management;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{
    failure::Failure,
    global::{Global, read_stdin},
    output,
};
use punctual_migrate::{
    check,
    definitions::Definitions,
    pipeline,
    plan::{Plan, QueueType},
    scripts, summary, user, write,
};

#[derive(Args)]
pub struct MigrateArguments {
    #[command(subcommand)]
    from: From,
}

#[derive(Subcommand)]
enum From {
    /// From the delayed-message exchange plugin of RabbitMQ
    Rabbitmq(RabbitMq),
}

#[derive(Args)]
struct RabbitMq {
    /// The file that `rabbitmqctl export_definitions FILE` wrote on the old broker; `-` is standard input
    export: PathBuf,
    /// Write the new definitions, punctual.yaml, scripts and a summary into this directory
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    out: Option<PathBuf>,
    /// Type of the queues that punctual reads
    #[arg(long, value_enum, default_value = "quorum")]
    queue_type: GivenQueueType,
    /// Compare with a running broker: the URL of its management API, such as `http://localhost:15672`, or an export of
    /// the broker, `-` from standard input
    #[arg(long, value_name = "URL|FILE")]
    check: Option<String>,
    /// User for `--check URL`: needs the tag `monitoring` and any right in each virtual host, or the tag
    /// `administrator` to see the permissions of other users too. The password is in `PUNCTUAL_MANAGEMENT_PASSWORD`
    #[arg(long, value_name = "NAME", default_value = "guest")]
    user: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum GivenQueueType {
    Quorum,
    Classic,
}

impl std::convert::From<GivenQueueType> for QueueType {
    fn from(given: GivenQueueType) -> Self {
        match given {
            GivenQueueType::Quorum => Self::Quorum,
            GivenQueueType::Classic => Self::Classic,
        }
    }
}

pub async fn run(global: &Global, arguments: MigrateArguments) -> Result<(), Failure> {
    let From::Rabbitmq(arguments) = arguments.from;
    let path = &arguments.export;
    let nothing = || Failure::NotFound(format!("{}: there is no exchange of type x-delayed-message", path.display()));
    let mut plan = punctual_migrate::plan(read(path)?, arguments.queue_type.into()).ok_or_else(nothing)?;
    match (&arguments.check, &arguments.out) {
        (Some(broker), _) => compare(global, &plan, broker, &arguments).await,
        (None, Some(directory)) => {
            let written = write(&mut plan, directory, path)?;
            show(global, &plan, &written)
        }
        (None, None) => show(global, &plan, &[]),
    }
}

fn read(path: &Path) -> Result<Definitions, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Usage(format!("{}: {error}", path.display()));
    let text = if path == Path::new("-") {
        output::await_stdin("the definitions");
        read_stdin()
    } else {
        std::fs::read(path)
    };
    Definitions::parse(&text.map_err(|error| failed(&error))?).map_err(|error| failed(&error))
}

fn write(plan: &mut Plan, directory: &Path, export: &Path) -> Result<Vec<PathBuf>, Failure> {
    let given = std::env::var(user::PASSWORD).ok().filter(|password| !password.is_empty());
    let password = given.clone().unwrap_or_else(|| user::password(rand::random()));
    user::add(plan, &password, rand::random());
    let definitions = serde_json::to_string_pretty(&plan.definitions).expect("names and values") + "\n";
    let export = std::path::absolute(export).unwrap_or_else(|_| export.to_owned());
    let mut files = vec![
        ("definitions.json", definitions),
        ("punctual.yaml", pipeline::yaml(plan)),
        ("cutover.sh", scripts::cutover(plan)),
        ("rollback.sh", scripts::rollback(plan, &export.to_string_lossy())),
        ("SUMMARY.md", summary::text(plan)),
    ];
    if given.is_none() {
        files.push(("password", password + "\n"));
    }
    write::all(directory, &files).map_err(Failure::Failed)
}

fn show(global: &Global, plan: &Plan, written: &[PathBuf]) -> Result<(), Failure> {
    let (moved, changed, undecided) = (&plan.moved, &plan.changed, &plan.undecided);
    let json = json!({ "moved": moved, "changed": changed, "undecided": undecided, "written": written });
    let end = if written.is_empty() {
        "Nothing is written: `--out DIR` writes the definitions, punctual.yaml, scripts and this.".to_owned()
    } else {
        let written: Vec<_> = written.iter().map(|path| path.display().to_string()).collect();
        format!("Written: {}", written.join(", "))
    };
    output::result(global, json, format_args!("{}\n{end}", summary::text(plan)))
}

async fn compare(global: &Global, plan: &Plan, broker: &str, arguments: &RabbitMq) -> Result<(), Failure> {
    let running = if broker.starts_with("http://") || broker.starts_with("https://") {
        if broker.contains('@') {
            let text = format!("--check: the user is in --user, the password in {}", management::PASSWORD);
            return Err(Failure::Usage(text));
        }
        let password = std::env::var(management::PASSWORD)
            .map_err(|_| Failure::Usage(format!("{} is not set", management::PASSWORD)))?;
        let vhosts: BTreeSet<_> = plan.moved.iter().map(|moved| &moved.vhost).collect();
        management::definitions(broker, &arguments.user, &password, vhosts).await.map_err(Failure::Failed)?
    } else {
        read(Path::new(broker))?
    };
    let found = check::compare(plan, &running);
    let rights = if running.permissions.is_empty() { "not seen" } else { "compared" };
    let text = if found.is_empty() {
        format!("the broker is as planned; rights were {rights}")
    } else {
        found.iter().map(|note| format!("{}: {}", note.about, note.text)).collect::<Vec<_>>().join("\n")
    };
    output::result(global, json!({ "found": found, "rights": rights }), text)?;
    match found.len() {
        0 => Ok(()),
        count => Err(Failure::Failed(format!("{count} differences from the plan"))),
    }
}
