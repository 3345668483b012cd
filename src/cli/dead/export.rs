//! `punctual dead export ROUTE`.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    os::fd::AsFd,
    path::PathBuf,
};

use clap::Args;

use crate::cli::{Session, failure::Failure, filter::Filter, output, pages::Listing, progress::Progress};

#[derive(Args)]
pub struct ExportArguments {
    route: String,
    #[command(flatten)]
    filter: Filter,
    /// Most messages; all without it
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    /// A new file; standard output without it
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub async fn run(session: &Session<'_>, arguments: ExportArguments) -> Result<(), Failure> {
    let ExportArguments { route, filter, limit, output: file } = &arguments;
    let file = file.as_ref().filter(|path| path.as_os_str() != "-");
    let place = file.map_or_else(|| "standard output".to_owned(), |path| path.display().to_string());
    let failed = |error: io::Error| Failure::of_output(&place, &error);
    let opened = match file {
        Some(path) => File::create_new(path),
        // Not the shared standard output: the process flushes that at its end, and would wait for a reader after Ctrl-C.
        None => io::stdout().as_fd().try_clone_to_owned().map(File::from),
    };
    let mut out = BufWriter::new(opened.map_err(failed)?);
    let exported = |count: u64| format!("exported {} of {route}", output::counted(count, "dead letter"));
    let (progress, mut count) = (Progress::new(*limit, exported(0), "at most: the export is incomplete"), 0);
    let listing = Listing { route, state: "dead", filter, limit: *limit };
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
