//! Whether a command printed what its page shows.

/// Matches any text within a line; as a whole line, any further lines.
const ANY: &str = "...";

/// Differences between a page and an output. Each line of the page must be a line of the output, in any order. The
/// output has no other lines unless the page has a line `...`. Numbers of ten digits and more, RFC 3339 times and
/// `+N ms` are alike, as is any white space.
pub fn difference(page: &str, output: &str) -> Option<String> {
    let lines = |text: &str| text.lines().map(alike).filter(|line| !line.is_empty()).collect::<Vec<_>>();
    let (mut expected, mut printed) = (lines(page), lines(output));
    let is_open = expected.iter().any(|line| line == ANY);
    expected.retain(|line| line != ANY);
    let mut problems = Vec::new();
    for line in &expected {
        match printed.iter().position(|printed| fits(line, printed)) {
            Some(found) => drop(printed.remove(found)),
            None => problems.push(format!("not printed: {line}")),
        }
    }
    if !is_open {
        problems.extend(printed.iter().map(|line| format!("not on the page: {line}")));
    }
    (!problems.is_empty()).then(|| format!("{}\n-- output:\n{output}", problems.join("\n")))
}

/// Whether a pattern with `...` covers a whole text.
pub fn fits(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split(ANY);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

/// A line without what differs from run to run.
fn alike(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(timeless).collect();
    words.join(" ").replace("+N ms", "+0 ms")
}

/// Digits that tell a time become `N`.
fn timeless(word: &str) -> String {
    if word.starts_with('+') && word.len() > 1 && word[1..].bytes().all(|byte| byte.is_ascii_digit()) {
        return "+N".to_owned();
    }
    let mut kept = String::new();
    let mut rest = word;
    while let Some(start) = rest.find(|char: char| char.is_ascii_digit()) {
        let part = &rest[start..];
        let is_time = part.get(10..11) == Some("T") && part.get(4..5) == Some("-");
        let end = if is_time {
            part.find('Z').map_or(part.len(), |end| end + 1)
        } else {
            part.find(|char: char| !char.is_ascii_digit()).unwrap_or(part.len())
        };
        kept.push_str(&rest[..start]);
        kept.push_str(if is_time || end >= 10 { "N" } else { &part[..end] });
        rest = &part[end..];
    }
    kept + rest
}

#[test]
fn what_is_shown_must_be_printed_and_the_other_way_round() {
    let late = "http order-1 +12 ms 2026-11-21T09:30:00.123Z";
    assert_eq!(difference("http  order-1    +3 ms  2025-01-01T00:00:00Z\n", late), None);
    assert!(difference("http order-2 +3 ms 2025-01-01T00:00:00Z", late).is_some(), "another id");
    assert_eq!(difference("b\na\n", "a\nb\n"), None, "whatever the order");
    assert!(difference("a\n", "a\nb\n").is_some(), "one more is printed");
    assert_eq!(difference("a\n...\n", "a\nb\n"), None);
    assert!(difference("a\na\n", "a\n").is_some(), "one less is printed");
    assert_eq!(
        difference(r#"{"sha": "v1,...", "at": 1795255200000}"#, r#"{"sha": "v1,abc=", "at": 1795255200123}"#),
        None
    );
    assert!(!fits("a...b", "a") && !fits("a...", "b") && fits("a...b...c", "a--b--c") && !fits("a", "ab"));
}
