//! Queries of Prometheus, parsed well enough to find the names of metrics and labels that a query uses.

use std::collections::{BTreeMap, BTreeSet};

/// Words before a list of labels in brackets.
const GROUPINGS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that are not metrics.
const WORDS: [&str; 9] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2", "end"];

#[derive(Debug, Default, PartialEq)]
pub struct Query {
    /// The labels of each metric: those of its selectors, and those by which the metrics around it are grouped.
    pub metrics: BTreeMap<String, BTreeSet<String>>,
    /// The labels that the first aggregation keeps; `None`: there is none.
    pub kept: Option<BTreeSet<String>>,
    /// The labels of each `by`, `on` and the like.
    pub groupings: Vec<BTreeSet<String>>,
    /// The labels of the selector of each metric, as often as it is named.
    pub selectors: Vec<BTreeSet<String>>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Sign(char),
}

impl Query {
    pub fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let mut query = Self::default();
        // Aggregations that are open: their depth of brackets and their labels.
        let mut groups: Vec<(usize, BTreeSet<String>)> = Vec::new();
        let (mut everywhere, mut waiting, mut depth) = (BTreeSet::new(), None, 0);
        let mut at = 0;
        while at < tokens.len() {
            match (&tokens[at], tokens.get(at + 1)) {
                (Token::Word(word), Some(Token::Sign('('))) if GROUPINGS.contains(&&**word) => {
                    let labels = until(&tokens, at + 2, ')');
                    at += 2 + labels.len();
                    let labels = words(labels);
                    query.groupings.push(labels.clone());
                    if word == "by" {
                        query.kept.get_or_insert_with(|| labels.clone());
                        waiting = Some(labels);
                    } else {
                        everywhere.extend(labels);
                    }
                }
                (Token::Sign('('), _) => {
                    depth += 1;
                    groups.extend(waiting.take().map(|labels| (depth, labels)));
                }
                (Token::Sign(')'), _) => {
                    groups.retain(|(opened, _)| *opened < depth);
                    depth -= 1;
                }
                (Token::Sign('['), _) => at += until(&tokens, at + 1, ']').len(),
                // A function, or an aggregation before its `by`.
                (Token::Word(_), Some(Token::Sign('('))) => {}
                (Token::Word(_), Some(Token::Word(next))) if GROUPINGS.contains(&&**next) => {}
                (Token::Word(word), next)
                    if !WORDS.contains(&&**word) && !word.starts_with(|c: char| c.is_ascii_digit()) =>
                {
                    let labels = query.metrics.entry(word.clone()).or_default();
                    labels.extend(groups.iter().flat_map(|(_, labels)| labels.clone()));
                    let mut selector = BTreeSet::new();
                    if next == Some(&Token::Sign('{')) {
                        let selectors = until(&tokens, at + 2, '}');
                        at += 1 + selectors.len();
                        selector = words(selectors);
                    }
                    labels.extend(selector.clone());
                    query.selectors.push(selector);
                }
                _ => {}
            }
            at += 1;
        }
        query.metrics.values_mut().for_each(|labels| labels.extend(everywhere.clone()));
        query
    }
}

/// Quoted text and signs that do not matter are left out.
fn tokens(text: &str) -> Vec<Token> {
    let mut found: Vec<Token> = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        if char == '"' {
            while let Some(quoted) = chars.next().filter(|quoted| *quoted != '"') {
                if quoted == '\\' {
                    chars.next();
                }
            }
        } else if is_part(char) {
            let mut word = String::from(char);
            while let Some(part) = chars.next_if(|char| is_part(*char)) {
                word.push(part);
            }
            found.push(Token::Word(word));
        } else if "(){}[]".contains(char) {
            found.push(Token::Sign(char));
        }
    }
    found
}

fn is_part(char: char) -> bool {
    char.is_ascii_alphanumeric() || "_:.$".contains(char)
}

fn until(tokens: &[Token], from: usize, end: char) -> &[Token] {
    let rest = &tokens[from..];
    let length = rest.iter().position(|token| *token == Token::Sign(end));
    &rest[..length.unwrap_or_else(|| panic!("no `{end}` after {rest:?}"))]
}

fn words(tokens: &[Token]) -> BTreeSet<String> {
    let word = |token: &Token| if let Token::Word(word) = token { Some(word.clone()) } else { None };
    tokens.iter().filter_map(word).collect()
}

#[test]
fn the_names_of_a_query_are_found() {
    let query = Query::parse(
        "histogram_quantile(0.99, sum by (route, le) (rate(late_bucket{route=~\"a|b\", job!=\"x{y}\"}[5m] offset 1m))) > 1.5e3\n\
         unless on (sink) max without (z) (other) == 0 or up{} or plain",
    );
    let shown: Vec<String> = query
        .metrics
        .iter()
        .map(|(name, labels)| format!("{name}: {}", labels.iter().cloned().collect::<Vec<_>>().join(" ")))
        .collect();
    let expected = ["late_bucket: job le route sink z", "other: sink z", "plain: sink z", "up: sink z"];
    assert_eq!(shown, expected);
    let numbers = |sets: &[BTreeSet<String>]| sets.iter().map(BTreeSet::len).collect::<Vec<_>>();
    assert_eq!((numbers(&query.groupings), numbers(&query.selectors)), (vec![2, 1, 1], vec![2, 0, 0, 0]));
    assert_eq!(query.kept, Some(BTreeSet::from(["le".to_owned(), "route".to_owned()])));
}
