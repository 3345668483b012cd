//! Regular expressions of policies and permissions. RabbitMQ's are PCRE, with look-around, and match anywhere in a name.

use fancy_regex::Regex;

/// Whether `pattern` matches `name`; `None` where it cannot be evaluated here.
pub fn matches(pattern: &str, name: &str) -> Option<bool> {
    Regex::new(pattern).ok()?.is_match(name).ok()
}

/// Whether a right is one on `name`: as `matches`, but RabbitMQ takes an empty right for none.
pub fn allows(right: &str, name: &str) -> Option<bool> {
    if right.is_empty() { Some(false) } else { matches(right, name) }
}

/// What matches these names and nothing else.
pub fn exactly<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.into_iter().map(fancy_regex::escape).collect();
    match &*names {
        [] => "^$".into(),
        [name] => format!("^{name}$"),
        _ => format!("^(?:{})$", names.join("|")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_rabbitmq() {
        for (pattern, name, expected) in [
            ("", "orders", Some(true)),
            ("^$", "orders", Some(false)),
            (".*", "orders", Some(true)),
            ("der", "orders", Some(true)),
            (r"^(?!amq\.).*", "orders", Some(true)),
            (r"^(?!amq\.).*", "amq.topic", Some(false)),
            (r"^(a|b)\1$", "aa", Some(true)),
            ("(", "orders", None),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern}");
        }
        assert_eq!((allows("", "orders"), allows("ord", "orders")), (Some(false), Some(true)));
    }

    #[test]
    fn what_is_made_of_names_matches_them_alone() {
        let names = ["a.b", "c+(d)", "#{x}"];
        let pattern = exactly(names);
        assert!(names.iter().all(|name| matches(&pattern, name) == Some(true)), "{pattern}");
        for other in ["axb", "xa.b", "a.bx", "", "cc"] {
            assert_eq!(matches(&pattern, other), Some(false), "{pattern} and {other}");
        }
        assert_eq!(exactly([]), "^$");
    }
}
