//! `punctual dead`: the dead letters of a route.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::fd::AsFd,
    path::PathBuf,
};

use clap::{Args, Subcommand};
use serde_json::{Map, Value};
use url::form_urlencoded::Serializer;

use super::{
    bulk::{Bulk, BulkArguments, Selection},
    client::{Session, of_route},
    edit,
    failure::Failure,
    list::{DEAD_COLUMNS, Filter, Listing, Order, PageArguments, time_from_now},
    output,
    progress::Progress,
    table,
};

#[derive(Args)]
pub struct DeadArguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Count dead letters by reason
    Summary(SummaryArguments),
    /// List dead letters
    List(ListArguments),
    /// Schedule dead letters again, due now, with 0 attempts
    Redrive(RedriveArguments),
    /// Delete dead letters
    Purge(ActArguments),
    /// Forward dead letters again to the route of `dead.forward`
    Forward(ActArguments),
    /// Write dead letters as NDJSON, which `import` reads
    Export(ExportArguments),
}

pub async fn run(session: &Session<'_>, arguments: DeadArguments) -> Result<(), Failure> {
    match arguments.command {
        Command::Summary(arguments) => summary(session, arguments).await,
        Command::List(arguments) => list(session, arguments).await,
        Command::Redrive(arguments) => redrive(session, arguments).await,
        Command::Purge(arguments) => purge(session, arguments).await,
        Command::Forward(arguments) => forward(session, arguments).await,
        Command::Export(arguments) => export(session, arguments).await,
    }
}

#[derive(Args)]
pub struct SummaryArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
}

async fn summary(session: &Session<'_>, arguments: SummaryArguments) -> Result<(), Failure> {
    let query = Serializer::new(String::new()).extend_pairs(arguments.filter.fields()?).finish();
    let path = of_route(&arguments.route, &format!("/dead/summary?{query}"))?;
    let summary = session.client.get(&path).await?;
    let text = reasons(&summary);
    output::result(session.global, summary, text)
}

fn reasons(summary: &Value) -> String {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).unwrap_or("-").to_owned();
    let row = |group: &Value| {
        let sample = &group["sample"];
        let [oldest, newest] = ["oldest", "newest"].map(|name| text(&group[name]));
        vec![
            text(&group["reason"]),
            group["count"].to_string(),
            oldest,
            newest,
            text(&sample["id"]),
            text(&sample["error"]),
        ]
    };
    let rows: Vec<_> = summary["reasons"].as_array().into_iter().flatten().map(row).collect();
    let table = table::text(&["REASON", "COUNT", "OLDEST", "NEWEST", "SAMPLE", "ERROR"], &rows);
    let incomplete = if summary["complete"] == false { ", and more: not all were counted in time" } else { "" };
    format!("{table}\ntotal {}{incomplete}", summary["total"])
}

#[derive(Args)]
pub struct ListArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    page: PageArguments,
}

async fn list(session: &Session<'_>, arguments: ListArguments) -> Result<(), Failure> {
    let ListArguments { route, filter, page } = &arguments;
    Listing::page(route, "dead", filter, page).show(session, DEAD_COLUMNS).await
}

#[derive(Args)]
pub struct ActArguments {
    route: String,
    /// Ids of messages; `-`: one per line on standard input
    ids: Vec<String>,
    /// All dead letters of the route
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    bulk: BulkArguments,
}

#[derive(Args)]
pub struct RedriveArguments {
    #[command(flatten)]
    act: ActArguments,
    /// New time of expiry: `drop`, `keep`, or a duration with its unit such as `5m`: each message expires that long
    /// after it is due; `drop` by default
    #[arg(long, value_name = "EXPIRY")]
    expiry: Option<String>,
    /// One after another at this rate, e.g. `50/s`; all at once by default
    #[arg(long, value_name = "RATE")]
    rate: Option<String>,
    /// When the first one is due: RFC 3339, milliseconds since 1970, or a duration from now such as `2h`; now by default
    #[arg(long, value_name = "TIME")]
    start: Option<String>,
    /// Another route on which they are scheduled, instead of their own
    #[arg(long, value_name = "ROUTE")]
    to: Option<String>,
    /// Change this dead letter in $VISUAL or $EDITOR, then redrive it
    #[arg(long, value_name = "ID", conflicts_with_all = ["ids", "all", "dry_run", "limit"])]
    edit: Option<String>,
}

async fn redrive(session: &Session<'_>, arguments: RedriveArguments) -> Result<(), Failure> {
    let RedriveArguments { act, expiry, rate, start, to, edit } = arguments;
    let start = start.as_deref().map(time_from_now);
    let fields = [("expiry", expiry), ("rate", rate), ("start", start), ("to", to)];
    let more = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into()))).collect();
    let Some(id) = edit else { return act_on(session, act, "redrive", "redrove", more).await };
    if !act.filter.body()?.is_empty() {
        return Err(Failure::Usage("--edit is for one dead letter: leave out the filter".into()));
    }
    edit::run(session, &act.route, &id, act.bulk.yes, more).await
}

async fn purge(session: &Session<'_>, arguments: ActArguments) -> Result<(), Failure> {
    act_on(session, arguments, "purge", "purged", Map::new()).await
}

async fn forward(session: &Session<'_>, arguments: ActArguments) -> Result<(), Failure> {
    act_on(session, arguments, "forward", "forwarding", Map::new()).await
}

/// `verb` is the name of the call, `done` its participle; `more`: further fields of its body.
async fn act_on(
    session: &Session<'_>,
    arguments: ActArguments,
    verb: &str,
    done: &str,
    more: Map<String, Value>,
) -> Result<(), Failure> {
    let ActArguments { route, ids, all, filter, bulk } = arguments;
    let mut filter = filter.body()?;
    let until = if ids.is_empty() { None } else { filter.remove("until") };
    let selection = Selection::of(ids, until, all, filter)?;
    let path = of_route(&route, &format!("/dead/{verb}"))?;
    let work = Bulk { path, selection, more, verb, done, noun: "dead letter", route: &route, state: "dead" };
    work.run(session, &bulk).await
}

#[derive(Args)]
pub struct ExportArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
    /// Maximum number of messages; all by default
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// A new file; standard output by default
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

async fn export(session: &Session<'_>, arguments: ExportArguments) -> Result<(), Failure> {
    let ExportArguments { route, filter, limit, output: file } = &arguments;
    let file = file.as_ref().filter(|path| path.as_os_str() != "-");
    let place = file.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
    let failed = |error: io::Error| Failure::of_output(&place, &error);
    let opened = match file {
        Some(path) => File::create_new(path),
        // Not the shared standard output: the process flushes that at its end, and after Ctrl-C would wait for a
        // reader.
        None => io::stdout().as_fd().try_clone_to_owned().map(File::from),
    };
    let mut out = BufWriter::new(opened.map_err(failed)?);
    let exported = |count: u64| format!("exported {} of {route}", output::counted(count, "dead letter"));
    let (progress, mut count) = (Progress::new(*limit, exported(0), "at most: the export is incomplete"), 0);
    let listing = Listing::all(route, "dead", filter, Order::Asc, *limit);
    let read = listing.read(session, |message| {
        count += 1;
        progress.reached(count, exported(count));
        writeln!(out, "{message}").map_err(failed)
    });
    read.await?;
    out.flush().map_err(failed)?;
    drop(progress);
    output::note(exported(count));
    Ok(())
}
