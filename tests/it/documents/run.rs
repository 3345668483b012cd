//! Runs what the pages say, on real servers.

use std::{collections::BTreeSet, env, time::Duration};

use futures::{StreamExt, stream};
use tokio::time::{Instant, sleep};

use super::{
    page::{Block, Page, pages},
    shown::{difference, fits},
    stage::Stage,
};
use crate::support::receiver::Request;

/// One page alone, as a path from the root.
const ONLY: &str = "PUNCTUAL_TEST_PAGE";
/// Pages that run at once.
const AT_ONCE: usize = 4;
/// Maximum wait for a request that a page shows, beyond the delay of its message.
const ARRIVAL: Duration = Duration::from_secs(10);
/// Maximum number of blocks of commands that are not run. Each block gives the reason.
const MOST_NOT_TESTED: usize = 15;
/// Languages of blocks. Those from `text` on are not run; code of producers is compared with `examples/clients`.
const LANGUAGES: [&str; 12] =
    ["yaml", "sh", "console", "http", "json", "text", "promql", "rust", "python", "go", "js", "java"];

#[test]
fn blocks_have_a_known_language_and_few_are_not_tested() {
    let mut left_out = Vec::new();
    for page in pages() {
        for block in page.blocks() {
            let at = format!("{}:{}", page.path, block.line);
            assert!(LANGUAGES.contains(&&*block.language), "{at}: `{}` is none of {LANGUAGES:?}", block.language);
            left_out.extend(block.not_tested().map(|reason| format!("{at}: {reason}")));
        }
    }
    assert!(left_out.len() <= MOST_NOT_TESTED, "more than {MOST_NOT_TESTED} blocks are not tested: {left_out:#?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "slow: tests/run.sh --full, and CI"]
async fn every_command_and_configuration_of_every_page_works() {
    let only = env::var(ONLY).ok();
    let chosen: Vec<Page> =
        pages().into_iter().filter(|page| only.as_ref().is_none_or(|only| *only == page.path)).collect();
    assert!(!chosen.is_empty(), "{ONLY} names no page");
    let ended = stream::iter(chosen).map(|page| async move { (run(&page).await, page.path) });
    let ended: Vec<_> = ended.buffer_unordered(AT_ONCE).collect().await;
    let failed: Vec<String> =
        ended.into_iter().filter_map(|(ended, path)| ended.err().map(|problem| format!("{path}:{problem}"))).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Each of these pages is right but for one thing.
#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_is_wrong_fails() {
    let yaml = "```yaml\nsinks: { hook: { type: http, url: \"http://127.0.0.1:9000/due\" } }\nroutes: { r: { sink: hook } }\n```\n";
    let post = "curl -s --fail-with-body 127.0.0.1:8080/v1/routes/r/messages -d '{\"id\": \"a\", \"payload\": 1}'";
    let serve = format!("{yaml}```sh\npunctual serve -c punctual.yaml\n{post}\n```\n");
    let request = "```http\nPOST /due HTTP/1.1\nPunctual-Id: a\n\n1\n```\n";
    let right = run(&Page { path: "right.md".into(), text: format!("{serve}{request}") }).await;
    assert_eq!(right, Ok(()));
    let wrong = [
        ("```yaml\nroutes: { r: { sink: missing } }\n```\n".to_owned(), "1: a command failed:"),
        (format!("{yaml}```yaml\nroutes: {{ r: {{ leases: 1s }} }}\n```\n"), "5: a command failed:"),
        ("```sh\nfalse\ntrue\n```\n".to_owned(), "1: a command failed:"),
        ("```console\n$ echo a | tr a b\na\n```\n".to_owned(), "not printed: a"),
        ("```console\n$ echo a; echo b\na\n```\n".to_owned(), "not on the page: b"),
        ("```json\n{\"a\": }\n```\n".to_owned(), "1: expected value"),
        (format!("{serve}{}", request.replace("Id: a", "Id: b")), "no such request"),
        (format!("{serve}{}", request.replace("\n1\n", "\n2\n")), "no such request"),
        (serve.replace("/r/", "/missing/"), "a command failed:"),
    ];
    let ended = stream::iter(wrong).map(|(text, problem)| async move {
        let page = Page { path: "wrong.md".into(), text };
        (run(&page).await.expect_err(&page.text), problem, page.text)
    });
    for (found, problem, text) in ended.buffer_unordered(AT_ONCE).collect::<Vec<_>>().await {
        assert!(found.contains(problem), "{text}\n{found}");
    }
}

async fn run(page: &Page) -> Result<(), String> {
    let blocks: Vec<Block> = page.blocks().into_iter().filter(Block::is_run).collect();
    let languages: BTreeSet<&str> = blocks.iter().map(|block| &*block.language).collect();
    if languages.is_disjoint(&BTreeSet::from(["yaml", "sh", "console", "http", "json"])) {
        return Ok(());
    }
    let started = Instant::now();
    let Some(mut stage) = Stage::set_up(page).await else { return Ok(()) };
    let mut ended = Ok(());
    for block in &blocks {
        ended = step(&mut stage, block).await.map_err(|problem| format!("{}: {problem}", block.line));
        if ended.is_err() {
            break;
        }
    }
    stage.clear().await;
    eprintln!("{}: {} blocks, {:.1?}", page.path, blocks.len(), started.elapsed());
    ended
}

async fn step(stage: &mut Stage, block: &Block) -> Result<(), String> {
    match &*block.language {
        "yaml" => stage.configure(&block.text).await,
        "sh" => stage.run(&block.text).await.map(drop),
        "console" => console(stage, &block.text).await,
        "json" => serde_json::from_str::<serde_json::Value>(&block.text).map(drop).map_err(|error| error.to_string()),
        "http" => arrived(stage, &block.text).await,
        _ => Ok(()),
    }
}

/// Lines that begin with `$ ` are commands, a `\` at the end continues one; the others are what it prints.
async fn console(stage: &mut Stage, text: &str) -> Result<(), String> {
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let mut command = line.strip_prefix("$ ").ok_or("a console block begins with `$ `")?.to_owned();
        while command.ends_with('\\') {
            command.push('\n');
            command.push_str(lines.next().ok_or("a command goes on")?);
        }
        let mut shown = String::new();
        while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
            shown.extend([line, "\n"]);
        }
        let printed = stage.run(&command).await?;
        if let Some(difference) = difference(&shown, &printed) {
            return Err(format!("{command}\n{difference}"));
        }
    }
    Ok(())
}

/// Waits until the receiver has a request as the block shows it.
async fn arrived(stage: &Stage, shown: &str) -> Result<(), String> {
    let deadline = Instant::now() + ARRIVAL;
    loop {
        let requests = stage.receiver.requests();
        if requests.iter().any(|request| is_shown(shown, request)) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("no such request among {requests:#?}\n{}", stage.log()));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Headers that the block leaves out may be there.
fn is_shown(shown: &str, request: &Request) -> bool {
    let (head, body) = shown.split_once("\n\n").unwrap_or((shown, ""));
    let mut lines = head.lines();
    let first = lines.next().unwrap_or_default();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        let sent = request.headers.get(name)?.to_str().ok()?;
        difference(value, sent).is_none().then_some(())
    };
    first == format!("POST {} HTTP/1.1", request.path)
        && lines.all(|line| header(line).is_some())
        && fits(body.trim_end(), String::from_utf8_lossy(&request.body).trim_end())
}
