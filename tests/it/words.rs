//! Comments and pages are in plain English: they contain no pattern of the table in CONTRIBUTING.md.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Folders and files with comments or pages.
const PLACES: [&str; 11] = [
    "src",
    "migrate",
    "lua",
    "benches",
    "examples",
    "tests",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "ARCHITECTURE.md",
];

/// A row of the table in CONTRIBUTING.md: the pattern, its replacement, an example of the pattern, and whether the
/// pattern begins at a word.
type Pattern = (&'static str, &'static str, &'static str, fn(&[Word], usize) -> bool);

#[rustfmt::skip]
const PATTERNS: [Pattern; 21] = [
    ("`What` as subject", "a noun", "What is due is sent.",
        |w, i| begins(w, i, &["What", "What's"]) && !is_question(&w[i..])),
    ("`is no`, `are no`", "`is not a`, `are not`", "The server is no master.",
        |w, i| any(w, i, &["is no", "are no", "was no", "were no", "be no"])
            && w[i + 1].tail.is_empty() && !any(w, i + 2, &["longer"]) && !follows(w, i, &["there"])),
    ("`no ... any more`", "`no longer`", "It has no open claim any more.",
        |w, i| any(w, i, &["no"])
            && (2..=6).any(|n| any(w, i + n, &["any more"]) && w[i..i + n].iter().all(|word| word.tail.is_empty()))),
    ("`one after the other`", "`in sequence`", "Sent one after the other.", |w, i| any(w, i, &["one after the other"])),
    ("`meanwhile`", "`since then`, or the interval", "Meanwhile it waits.", |w, i| any(w, i, &["meanwhile"])),
    ("`all the same`, `anyhow`", "`nevertheless`", "Sent all the same.", |w, i| any(w, i, &["all the same", "anyhow"])),
    ("`whose`", "two sentences, or `with`", "A message whose lease has expired.", |w, i| any(w, i, &["whose"])),
    ("`stands`, `stood`", "`is`, `was`", "No subscription stood since.",
        |w, i| any(w, i, &["stands", "stood", "stand"]) && !any(w, i + 1, &["still"])),
    ("`Of` at the beginning", "the noun first", "Of it.", |w, i| begins(w, i, &["Of"]) && !any(w, i + 1, &["course"])),
    ("`The same` at the beginning", "the name of the thing", "The same, for lists.",
        |w, i| begins(w, i, &["The"]) && any(w, i, &["the same"])),
    ("`so many`, `so long`, `so much`", "the number or the time", "It waits for so many messages.",
        |w, i| any(w, i, &["so many", "so long", "so much"]) && !any(w, i + 2, &["that", "as"])),
    ("`else` as an adverb", "`otherwise`, or the condition", "Sent if due, else deferred.",
        |w, i| any(w, i, &["else"]) && !follows(w, i, &["thing", "one", "where", "body", "what", "who", "or"])),
    ("`then` at the end", "the condition first", "It ends the script then.",
        |w, i| any(w, i, &["then"]) && w[i].tail.starts_with(['.', ',', ';', ')'])),
    ("`put off`, `put down to`", "`defer`, `the cause is`", "It puts off the message.",
        |w, i| any(w, i, &["put off", "puts off", "putting off", "put down to", "puts down to", "putting down to"])),
    ("`Most`, `Longest`, `Shortest`, `Fewest` at the beginning", "`maximum`, `minimum`", "Longest sleep.",
        |w, i| begins(w, i, &["Most", "Longest", "Shortest", "Fewest"])),
    ("`company`, `bell`, `twin`", "`group`, `signal`, `counterpart`", "The bells of a partition.",
        |w, i| any(w, i, &["company", "bell", "bells", "twin"])),
    ("`whoever`, `nobody`", "the client or instance", "Nobody waits.", |w, i| any(w, i, &["whoever", "nobody"])),
    ("`patience`", "`timeout`, `delay`", "The patience of a client.", |w, i| any(w, i, &["patience"])),
    ("`let go`", "`delete`, `evict`, `close`", "It lets go.", |w, i| any(w, i, &["let go", "lets go", "letting go"])),
    ("`come to nothing`", "`fail`", "The probe came to nothing.",
        |w, i| any(w, i, &["come to nothing", "comes to nothing", "came to nothing"])),
    ("`is told`, `find out`", "`is notified`, `detect`", "The source found out.",
        |w, i| any(w, i, &["is told", "are told", "was told", "were told"])
            || any(w, i, &["find out", "finds out", "found out"])),
];

/// A word of a text. A span of code counts as the word `x`.
#[derive(Default)]
struct Word {
    line: usize,
    text: String,
    /// Punctuation before and after the word.
    lead: String,
    tail: String,
}

/// Whether one of the phrases begins at this word, without punctuation in it; in lower or upper case.
fn any(words: &[Word], at: usize, phrases: &[&str]) -> bool {
    let initial = words.get(at).and_then(|word| word.text.bytes().next()).map(|byte| byte.to_ascii_lowercase());
    phrases.iter().filter(|phrase| phrase.bytes().next() == initial).any(|phrase| {
        let mut last = at;
        phrase.split(' ').enumerate().all(|(index, expected)| {
            let is_joined = index == 0 || words[last].tail.is_empty();
            last = at + index;
            is_joined && words.get(last).is_some_and(|word| word.text.eq_ignore_ascii_case(expected))
        })
    })
}

/// Whether this word begins a sentence and is one of `starts`.
fn begins(words: &[Word], at: usize, starts: &[&str]) -> bool {
    let is_first = at == 0 || words[at - 1].tail.ends_with(['.', ':', ';', '!', '?']);
    is_first && words[at].lead.is_empty() && starts.contains(&&*words[at].text)
}

/// Whether the word before has one of the endings.
fn follows(words: &[Word], at: usize, endings: &[&str]) -> bool {
    let before = at.checked_sub(1).map(|before| words[before].text.to_lowercase());
    before.is_some_and(|before| endings.iter().any(|ending| before.ends_with(ending)))
}

/// Whether the first sentence ends with a question mark.
fn is_question(words: &[Word]) -> bool {
    words.iter().find(|word| word.tail.contains(['.', '?'])).is_some_and(|word| word.tail.contains('?'))
}

/// The words of a paragraph, from its lines with their numbers.
fn words(lines: &[(usize, &str)]) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut ticks: usize = lines.iter().map(|(_, text)| text.matches('`').count()).sum();
    let (mut is_code, mut is_inside) = (false, false);
    for (line, text) in lines {
        // The last of an odd number of backticks opens no code.
        for char in text.chars().chain(['\n']) {
            let tick = char == '`';
            ticks -= usize::from(tick);
            let opens = tick && !is_code && ticks > 0;
            if char.is_whitespace() && !is_code {
                is_inside = false;
            } else if opens || !(is_code || tick || char == '*') {
                if !is_inside {
                    words.push(Word { line: *line, ..Word::default() });
                    is_inside = true;
                }
                let word = words.last_mut().expect("pushed");
                if opens || char.is_alphanumeric() {
                    // Punctuation in a word, such as an apostrophe, belongs to it.
                    word.text.extend(word.tail.drain(..).chain([if opens { 'x' } else { char }]));
                } else if word.text.is_empty() {
                    word.lead.push(char);
                } else {
                    word.tail.push(char);
                }
            }
            is_code = if tick { opens } else { is_code };
        }
    }
    words
}

/// The comment in a line, and whether the line has nothing else.
fn comment<'a>(line: &'a str, mark: &str) -> Option<(&'a str, bool)> {
    if let Some(rest) = line.trim_start().strip_prefix(mark) {
        return Some((rest.trim_start_matches(['/', '!']).trim(), true));
    }
    // With a quotation mark it is more likely a string.
    let (_, rest) = line.split_once(&format!(" {mark} "))?;
    (!rest.contains('"')).then_some((rest.trim(), false))
}

/// The paragraphs of the comments, or of the page if there is no mark of a comment.
fn paragraphs<'a>(text: &'a str, mark: Option<&str>) -> Vec<Vec<(usize, &'a str)>> {
    let mut all = vec![Vec::new()];
    let mut is_fenced = false;
    for (number, line) in (1..).zip(text.lines()) {
        let part = mark.map_or(Some((line.trim(), true)), |mark| comment(line, mark));
        let (text, is_alone) = part.unwrap_or_default();
        let is_fence = text.starts_with("```");
        is_fenced ^= is_fence;
        let is_item = text.starts_with(['#', '|']) || text.starts_with("- ") || text.starts_with("* ");
        if is_item || text.is_empty() || !is_alone {
            all.push(Vec::new());
        }
        if is_fence || is_fenced {
            continue;
        }
        for cell in text.split('|').filter(|_| text.starts_with('|')) {
            all.push(vec![(number, cell)]);
        }
        if !text.is_empty() && !text.starts_with('|') {
            let text = text.trim_start_matches(['#', '-', '*', ' ']);
            all.last_mut().expect("never empty").push((number, text));
        }
        if text.starts_with(['#', '|']) || !is_alone {
            all.push(Vec::new());
        }
    }
    all
}

/// The patterns in a text, each with its line.
fn found(text: &str, mark: Option<&str>) -> Vec<(usize, &'static Pattern)> {
    let mut found = Vec::new();
    for paragraph in paragraphs(text, mark) {
        let words = words(&paragraph);
        for at in 0..words.len() {
            let here = PATTERNS.iter().filter(|pattern| pattern.3(&words, at));
            found.extend(here.map(|pattern| (words[at].line, pattern)));
        }
    }
    found
}

fn files(place: &Path) -> Vec<PathBuf> {
    if place.is_file() {
        return vec![place.to_owned()];
    }
    let entries = fs::read_dir(place).expect("a directory");
    let entries = entries.map(|entry| entry.expect("an entry").path());
    let entries = entries.filter(|path| !path.ends_with("target") && !path.ends_with("node_modules"));
    entries.flat_map(|path| files(&path)).collect()
}

#[test]
fn comments_and_pages_are_plain() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut wrong = Vec::new();
    for file in PLACES.iter().flat_map(|place| files(&root.join(place))) {
        let mark = match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => Some("//"),
            Some("lua") => Some("--"),
            Some("md") => None,
            _ => continue,
        };
        let text = fs::read_to_string(&file).expect("readable");
        let name = file.strip_prefix(root).expect("below the root").display();
        for (line, (pattern, write, ..)) in found(&text, mark) {
            wrong.push(format!("{name}:{line}: {pattern}: write {write}"));
        }
    }
    assert!(wrong.is_empty(), "see Prose in CONTRIBUTING.md:\n{}", wrong.join("\n"));
}

#[test]
fn the_table_has_each_pattern() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("CONTRIBUTING.md")).expect("readable");
    for (name, write, ..) in &PATTERNS {
        assert!(page.contains(&format!("\n| {name} | {write} |\n")), "not in CONTRIBUTING.md: {name}");
    }
}

#[test]
fn each_pattern_is_found_in_its_example() {
    for (name, _, example, _) in &PATTERNS {
        let names: Vec<_> = found(example, None).into_iter().map(|(_, found)| found.0).collect();
        assert_eq!(names, [*name], "{example}");
    }
}

#[test]
fn plain_english_is_not_found() {
    for text in [
        "There is no lease. The answer is no. Where are there no messages? Redis is no longer down.",
        "What is it? What happens if a: b? Of course. A row of `What` and\n`whose\nelse` in code.",
        "Nothing else. Someone else, or else elsewhere. So long as it waits. If late, then it waits; it stands still.",
        "The most, the longest. It is then sent. ``` alone\n\n```text\nmeanwhile\n```\n",
    ] {
        assert!(found(text, None).is_empty(), "{text}");
    }
    let code = "let whose = 1;\nlet text = \" // nobody \";\n/// ```\n/// whose();\n/// ```\nfn nobody() {}";
    assert!(found(code, Some("//")).is_empty());
}

#[test]
fn the_line_is_that_of_the_pattern() {
    let lines = |text, mark| found(text, mark).into_iter().map(|(line, _)| line).collect::<Vec<_>>();
    assert_eq!(lines("//! One.\n\n/// # Errors\n/// What\n/// is due.\nlet a = 1; // Of all.", Some("//")), [4, 6]);
    assert_eq!(lines("-- One\n-- `a\n-- b` whose\nlocal a = 1 -- nobody", Some("--")), [3, 4]);
    assert_eq!(lines("# What it does\n\n| Most | a | Of both |\n- The\n  same", None), [1, 3, 3, 4]);
}
