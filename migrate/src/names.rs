//! Names of added objects: unused, and valid for the broker and the configuration.

use std::collections::BTreeSet;

/// Maximum length of the name of an exchange or queue, in bytes.
const LONGEST: usize = 255;
/// Maximum length of the name of a route, sink or source, in bytes.
const LONGEST_ROUTE: usize = 64;

/// `{base}{suffix}`, with a number appended if that name is taken, and with `base` shortened if the name is too long.
/// Adds the name to `taken`.
pub fn free(base: &str, suffix: &str, taken: &mut BTreeSet<String>) -> String {
    first_free(base, suffix, LONGEST, taken)
}

/// A name for a route, sink and source, derived from the name of an exchange.
pub fn of_route(exchange: &str, taken: &mut BTreeSet<String>) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let base: String = exchange.chars().map(|c| if allowed(c) { c } else { '-' }).collect();
    first_free(if base.is_empty() { "delayed" } else { &base }, "", LONGEST_ROUTE, taken)
}

fn first_free(base: &str, suffix: &str, longest: usize, taken: &mut BTreeSet<String>) -> String {
    let mut number = 1;
    loop {
        let suffix = if number == 1 { suffix.to_owned() } else { format!("{suffix}.{number}") };
        let mut end = base.len().min(longest - suffix.len());
        while !base.is_char_boundary(end) {
            end -= 1;
        }
        let name = format!("{}{suffix}", &base[..end]);
        if taken.insert(name.clone()) {
            return name;
        }
        number += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_free_and_fit() {
        let mut taken = BTreeSet::from(["a.delay.in".to_owned(), "a.delay.in.2".to_owned()]);
        assert_eq!(free("a", ".delay.in", &mut taken), "a.delay.in.3");
        assert_eq!(free("b", ".delay.in", &mut taken), "b.delay.in");
        let long = "é".repeat(127);
        let (first, second) = (free(&long, ".delay.out", &mut taken), free(&long, ".delay.out", &mut taken));
        assert!(first.len() <= LONGEST && first.ends_with(".delay.out"), "{first}");
        assert!(second.len() <= LONGEST && second.ends_with(".delay.out.2"), "{second}");
    }

    #[test]
    fn routes_have_letters_that_the_configuration_takes() {
        let mut taken = BTreeSet::new();
        assert_eq!(of_route("orders/eu", &mut taken), "orders-eu");
        assert_eq!(of_route("orders eu", &mut taken), "orders-eu.2");
        assert_eq!(of_route("", &mut taken), "delayed");
        assert_eq!(of_route(&"x".repeat(100), &mut taken).len(), LONGEST_ROUTE);
    }
}
