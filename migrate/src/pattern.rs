//! Regular expressions of policies and permissions. RabbitMQ uses PCRE with look-around, and matches anywhere in a
//! name.

use fancy_regex::Regex;

/// Whether `pattern` matches `name`; `None` if the pattern cannot be evaluated here.
pub fn matches(pattern: &str, name: &str) -> Option<bool> {
    Regex::new(pattern).ok()?.is_match(name).ok()
}

/// Whether a permission covers `name`. Like `matches`, but in RabbitMQ an empty permission covers no name.
pub fn allows(right: &str, name: &str) -> Option<bool> {
    if right.is_empty() { Some(false) } else { matches(right, name) }
}

/// A pattern that matches these names only.
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
