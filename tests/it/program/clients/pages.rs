//! Pages about the producers: their commands, code and versions.

use std::{fs, path::Path};

use super::{
    Place,
    producer::{Producer, readme},
};
use crate::documents::page::{Page, ROOT};

/// The language of a block of `docs/producers.md`, and the file that it is of.
const SHOWN: [(&str, &str); 4] = [
    ("python", "python/schedule.py"),
    ("go", "go/redis.go"),
    ("js", "node/schedule.js"),
    ("java", "java/Schedule.java"),
];

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_each_readme_deliver() {
    for producer in Producer::all().await {
        let place = Place::start().await;
        let [_, commands] = readme(producer.language);
        let output = producer.shell(&commands).envs(place.environment.iter().map(|(n, v)| (n, v))).output().await;
        let output = output.expect("bash");
        assert!(output.status.success(), "{}: {output:?}", producer.language);
        assert_eq!(String::from_utf8_lossy(&output.stdout), "scheduled report-8\nscheduled report-9\n");
        for id in ["report-8", "report-9"] {
            let arrived = place.arrived().await;
            assert_eq!((&*arrived.id, &*arrived.payload), (id, &b"the payload"[..]), "{}", producer.language);
        }
    }
}

#[test]
fn the_page_shows_the_tested_code() {
    let blocks = Page::read("docs/producers.md").blocks();
    for (language, file) in SHOWN {
        let path = Path::new(ROOT).join("examples/clients").join(file);
        let code = fs::read_to_string(&path).expect("a file");
        let shown: Vec<_> = blocks.iter().filter(|block| block.language == language).collect();
        assert!(!shown.is_empty(), "no block `{language}`");
        for block in shown {
            // The page leaves out the indentation.
            let indentation = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
            let (code, block_code) = (indentation(&code), indentation(&block.text));
            assert!(code.contains(&block_code), "docs/producers.md:{}: not in {file}", block.line);
        }
    }
}

#[test]
fn the_producers_need_the_versions_that_are_installed() {
    let text = |path: &str| fs::read_to_string(Path::new(ROOT).join(path)).expect("a file");
    let json = |path: &str| serde_json::from_str::<serde_json::Value>(&text(path)).expect("JSON");
    let installed = &json("tests/clients/node/package.json")["dependencies"]["redis"];
    assert_eq!(&json("examples/clients/node/package.json")["dependencies"]["redis"], installed);
    let installed = text("tests/clients/python/requirements.txt");
    assert_eq!(text("examples/clients/python/requirements.txt"), installed);
}
