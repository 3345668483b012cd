//! A page of the documentation as its parts: blocks, headings and links.

use std::{
    fs,
    path::{Path, PathBuf},
};

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// First line of a block of commands that the tests leave out; the reason follows.
const NOT_TESTED: &str = "# Not tested: ";

/// First line of a block of commands that another test runs; the path of the test follows.
const TESTED_BY: &str = "# Tested by ";

/// A fenced block.
#[derive(Debug)]
pub struct Block {
    /// As after the fence: `yaml`, `sh`.
    pub language: String,
    /// Line of the opening fence, counted from 1.
    pub line: usize,
    pub text: String,
}

impl Block {
    /// Why the tests do not run it.
    pub fn not_tested(&self) -> Option<&str> {
        self.text.lines().next()?.strip_prefix(NOT_TESTED)
    }

    /// Which test runs it instead.
    ///
    /// # Panics
    /// When there is no such file or folder.
    pub fn tested_by(&self) -> Option<&str> {
        let path = self.text.lines().next()?.strip_prefix(TESTED_BY)?;
        assert!(Path::new(ROOT).join(path).exists(), "no test `{path}`");
        Some(path)
    }

    /// Whether the test of the pages runs it.
    pub fn is_run(&self) -> bool {
        self.not_tested().is_none() && self.tested_by().is_none()
    }
}

pub struct Page {
    /// From the root of the repository.
    pub path: String,
    pub text: String,
}

impl Page {
    pub fn read(path: &str) -> Self {
        let text = fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// The directory from which its links start.
    pub fn directory(&self) -> PathBuf {
        Path::new(ROOT).join(&self.path).parent().expect("a file has a directory").to_owned()
    }

    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut open: Option<Block> = None;
        for (index, line) in self.text.lines().enumerate() {
            match (line.strip_prefix("```"), open.as_mut()) {
                (Some(""), Some(_)) => blocks.extend(open.take()),
                (Some(language), None) => {
                    let (language, line) = (language.to_owned(), index + 1);
                    open = Some(Block { language, line, text: String::new() });
                }
                (_, Some(block)) => block.text.extend([line, "\n"]),
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{}: a block is not closed", self.path);
        blocks
    }

    /// Its text without blocks and without code between backticks.
    fn prose(&self) -> String {
        let mut in_block = false;
        let mut text = String::new();
        for line in self.text.lines() {
            if line.starts_with("```") {
                in_block = !in_block;
            } else if !in_block {
                text.extend([line, "\n"]);
            }
        }
        // Code may go on in the next line.
        assert!(text.matches('`').count().is_multiple_of(2), "{}: a backtick is missing", self.path);
        text.split('`').step_by(2).collect()
    }

    /// The anchors of its headings, as GitHub makes them.
    pub fn anchors(&self) -> Vec<String> {
        let mut in_block = false;
        let mut anchors = Vec::new();
        for line in self.text.lines() {
            in_block ^= line.starts_with("```");
            let title = line.trim_start_matches('#');
            if in_block || title.len() == line.len() || !title.starts_with(' ') {
                continue;
            }
            let kept = title.trim().to_lowercase().replace(' ', "-");
            anchors.push(kept.chars().filter(|char| char.is_alphanumeric() || "-_".contains(*char)).collect());
        }
        anchors
    }

    /// The targets of its links.
    pub fn links(&self) -> Vec<String> {
        let prose = self.prose();
        prose.split("](").skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
    }
}

/// The pages that are for readers: those at the root, and all below `docs/`.
pub fn pages() -> Vec<Page> {
    let mut paths: Vec<String> = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(str::to_owned).into();
    paths.retain(|path| Path::new(ROOT).join(path).exists());
    below("docs", &mut paths);
    paths.sort();
    paths.iter().map(|path| Page::read(path)).collect()
}

fn below(directory: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(Path::new(ROOT).join(directory)).expect("a directory") {
        let entry = entry.expect("an entry");
        let path = format!("{directory}/{}", entry.file_name().into_string().expect("UTF-8"));
        if entry.file_type().expect("a type").is_dir() {
            below(&path, paths);
        } else if Path::new(&path).extension().is_some_and(|extension| extension == "md") {
            paths.push(path);
        }
    }
}
