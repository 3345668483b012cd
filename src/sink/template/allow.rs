//! The allowed names of templated targets, as glob patterns. One pattern must match the whole name. `*` is any text
//! without a `/`, `**` any text, `?` one character other than `/`; all other characters, braces included, are literal.

use std::fmt::{self, Write};

/// Maximum number of patterns of a sink: each message is compared with each pattern.
const MAX_PATTERNS: usize = 1000;

/// Maximum number of characters of a name in an error.
const MAX_SHOWN: usize = 120;

/// The patterns of a sink. An empty list allows no name.
#[derive(Clone, Debug, Default)]
pub struct Allow(Vec<Pattern>);

impl Allow {
    /// # Errors
    /// For an invalid pattern, or too many.
    pub fn new(patterns: impl IntoIterator<Item = impl AsRef<str>>) -> Result<Self, String> {
        let patterns = patterns.into_iter().map(|text| Pattern::parse(text.as_ref()));
        patterns.collect::<Result<Vec<_>, _>>()?.try_into()
    }

    pub fn patterns(&self) -> &[Pattern] {
        &self.0
    }

    pub fn allows(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| pattern.matches(name))
    }

    /// # Errors
    /// When no pattern matches `name`; `what` is the kind of the name.
    pub fn check(&self, what: &str, name: &str) -> Result<(), String> {
        if self.allows(name) {
            return Ok(());
        }
        Err(Self::refusal(what, name, ""))
    }

    /// The error; `more` follows the name.
    pub(super) fn refusal(what: &str, name: &str, more: &str) -> String {
        format!("the {what} `{}`{more} is not allowed: no pattern of `allow` matches", shown(name))
    }
}

impl TryFrom<Vec<Pattern>> for Allow {
    type Error = String;

    fn try_from(patterns: Vec<Pattern>) -> Result<Self, String> {
        if patterns.len() > MAX_PATTERNS {
            return Err(format!("has {} patterns, at most {MAX_PATTERNS}", patterns.len()));
        }
        Ok(Self(patterns))
    }
}

/// One glob pattern.
#[derive(Clone, Debug)]
pub struct Pattern(Vec<PatternToken>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatternToken {
    One(char),
    /// `?`
    AnyOne,
    /// `*`
    Segment,
    /// `**`
    Any,
}

impl PatternToken {
    /// Whether the token matches text of any length.
    fn is_wild(self) -> bool {
        matches!(self, PatternToken::Segment | PatternToken::Any)
    }

    /// Whether the token can match `c`.
    fn takes(self, c: char) -> bool {
        match self {
            PatternToken::One(own) => own == c,
            PatternToken::AnyOne | PatternToken::Segment => c != '/',
            PatternToken::Any => true,
        }
    }

    /// Whether both tokens match a common character.
    fn meets(self, other: PatternToken) -> bool {
        match (self, other) {
            (PatternToken::One(c), other) | (other, PatternToken::One(c)) => other.takes(c),
            _ => true,
        }
    }
}

impl FromIterator<PatternToken> for Pattern {
    fn from_iter<I: IntoIterator<Item = PatternToken>>(tokens: I) -> Self {
        Self(tokens.into_iter().collect())
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|token| match token {
            PatternToken::One(c) => write!(f, "{}", c.escape_debug()),
            PatternToken::AnyOne => f.write_str("?"),
            PatternToken::Segment => f.write_str("*"),
            PatternToken::Any => f.write_str("**"),
        })
    }
}

impl Pattern {
    /// # Errors
    /// For an empty pattern.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Err("is empty".into());
        }
        let mut tokens = Vec::with_capacity(text.len());
        let mut characters = text.chars().peekable();
        while let Some(c) = characters.next() {
            tokens.push(match c {
                '?' => PatternToken::AnyOne,
                '*' if characters.next_if_eq(&'*').is_some() => PatternToken::Any,
                '*' => PatternToken::Segment,
                other => PatternToken::One(other),
            });
        }
        Ok(Self(tokens))
    }

    /// This pattern, then `separator`, then `other`.
    pub(super) fn followed_by(mut self, separator: char, other: Self) -> Self {
        self.0.push(PatternToken::One(separator));
        self.0.extend(other.0);
        self
    }

    /// Whether the pattern matches the whole of `text`.
    ///
    /// A wildcard first matches as little as possible. On a mismatch, only the last wildcard of each kind is widened:
    /// widening an earlier one reaches no text that the later one does not reach.
    pub fn matches(&self, text: &str) -> bool {
        let (mut place, mut rest) = (0, text);
        let (mut segment, mut any) = (None, None);
        loop {
            match (self.0.get(place), rest.chars().next()) {
                (Some(PatternToken::Any), _) => {
                    (any, segment) = (Some((place, rest)), None);
                    place += 1;
                    continue;
                }
                (Some(PatternToken::Segment), _) => {
                    segment = Some((place, rest));
                    place += 1;
                    continue;
                }
                (Some(token), Some(c)) if token.takes(c) => {
                    rest = &rest[c.len_utf8()..];
                    place += 1;
                    continue;
                }
                // The text is too short, also for a wildcard that takes more.
                (Some(_), None) => return false,
                (None, None) => return true,
                (_, Some(_)) => {}
            }
            let wider = widen(segment, PatternToken::Segment).or_else(|| widen(any, PatternToken::Any));
            let Some(wider) = wider else { return false };
            (place, rest) = wider;
        }
    }

    /// Whether both patterns match a common text.
    pub fn meets(&self, other: &Pattern) -> bool {
        let (a, b) = (&self.0, &other.0);
        // Whether the tokens of `a` after the current one meet the rest of `b`, by the place in `b`.
        let mut below = vec![false; b.len() + 1];
        for i in (0..=a.len()).rev() {
            let mut row = vec![false; b.len() + 1];
            for j in (0..=b.len()).rev() {
                row[j] = match (a.get(i), b.get(j)) {
                    (None, None) => true,
                    // The wildcard ends here, or matches the next token of the other pattern.
                    (Some(x), y) if x.is_wild() => below[j] || y.is_some_and(|y| x.meets(*y) && row[j + 1]),
                    (x, Some(y)) if y.is_wild() => row[j + 1] || x.is_some_and(|x| x.meets(*y) && below[j]),
                    (Some(x), Some(y)) => x.meets(*y) && below[j + 1],
                    (None, Some(_)) | (Some(_), None) => false,
                };
            }
            below = row;
        }
        below[0]
    }
}

/// Widens the wildcard by one character: its index, and the remaining text.
fn widen(wildcard: Option<(usize, &str)>, token: PatternToken) -> Option<(usize, &str)> {
    let (place, rest) = wildcard?;
    let c = rest.chars().next().filter(|c| token.takes(*c))?;
    Some((place, &rest[c.len_utf8()..]))
}

/// `name` for an error: without control characters, and shortened.
pub fn shown(name: &str) -> String {
    let mut shown: String = name.chars().take(MAX_SHOWN).flat_map(char::escape_debug).collect();
    let left_out = name.chars().count().saturating_sub(MAX_SHOWN);
    if left_out > 0 {
        write!(shown, "... and {left_out} more").expect("a string takes everything");
    }
    shown
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    #[test]
    fn patterns_match_the_whole_name() {
        for (text, matched, others) in [
            ("jobs", vec!["jobs"], vec!["", "job", "jobs2", "Jobs"]),
            ("jobs:*", vec!["jobs:", "jobs:a", "jobs:a:é"], vec!["jobs", "jobs:a/b", "xjobs:a"]),
            ("**", vec!["", "a/b", "/"], vec![]),
            ("*", vec!["", "a.b?c"], vec!["/", "a/b"]),
            ("/hooks/*", vec!["/hooks/a", "/hooks/a?b=c"], vec!["/hooks/a/b", "/admin", "/hooks/a/"]),
            ("/hooks/**", vec!["/hooks/a", "/hooks/a/b/c"], vec!["/hook/a", "/hooks"]),
            ("/a/*/c", vec!["/a/b/c", "/a//c"], vec!["/a/b/b/c", "/a/c"]),
            ("/**/c", vec!["/a/b/c", "//c"], vec!["/c/d", "/a/bc"]),
            ("a?c", vec!["abc", "aéc", "a?c"], vec!["ac", "a/c", "abbc"]),
            ("{a,b}[c]\\", vec!["{a,b}[c]\\"], vec!["a[c]\\", "bc"]),
            ("***", vec!["", "a/b"], vec![]),
        ] {
            for name in matched {
                assert!(pattern(text).matches(name), "{text} {name}");
            }
            for name in others {
                assert!(!pattern(text).matches(name), "{text} {name}");
            }
        }
        assert!(Pattern::parse("").is_err());
        assert!(Allow::new(vec!["a"; MAX_PATTERNS]).is_ok() && Allow::new(vec!["a"; MAX_PATTERNS + 1]).is_err());
        assert!(!Allow::default().allows(""));
    }

    #[test]
    fn a_pattern_that_meets_no_name_of_a_template_is_found() {
        for (text, shape, meets) in [
            ("jobs:*", "jobs:**", true),
            ("job:*", "jobs:**", false),
            ("jobs:a", "jobs:**", true),
            ("jobs", "jobs:**", false),
            ("/hooks/a/b", "/hooks/*", false),
            ("/hooks/a/b", "/hooks/**", true),
            ("https://h/**", "/hooks/*", false),
            ("**x", "*a", false),
            ("?", "*", true),
            ("?/", "*", false),
        ] {
            assert_eq!(pattern(text).meets(&pattern(shape)), meets, "{text} {shape}");
            assert_eq!(pattern(shape).meets(&pattern(text)), meets, "{shape} {text}");
        }
    }

    #[test]
    fn a_long_name_is_shown_in_part_and_without_control_characters() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"é".repeat(MAX_SHOWN + 5)), format!("{}... and 5 more", "é".repeat(MAX_SHOWN)));
    }

    /// The definition of a match, without regard to cost.
    fn plainly_matches(tokens: &[PatternToken], text: &[char]) -> bool {
        match (tokens, text) {
            ([], []) => true,
            ([token, behind @ ..], _) if token.is_wild() => {
                let longer = |(c, rest): (&char, &[char])| token.takes(*c) && plainly_matches(tokens, rest);
                plainly_matches(behind, text) || text.split_first().is_some_and(longer)
            }
            ([token, behind @ ..], [c, rest @ ..]) => token.takes(*c) && plainly_matches(behind, rest),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matching_is_as_defined(text in "[ab/*?]{1,9}", name in "[ab/]{0,9}") {
            let pattern = pattern(&text);
            let characters: Vec<char> = name.chars().collect();
            let expected = plainly_matches(&pattern.0, &characters);
            prop_assert_eq!(pattern.matches(&name), expected);
            let literal: Pattern = characters.into_iter().map(PatternToken::One).collect();
            prop_assert_eq!(pattern.meets(&literal), expected);
        }
    }
}
