//! Numbers as text, as the functions of C write and read them.

/// As `%.<precision>g`.
pub fn text(number: f64, precision: usize) -> String {
    if number.is_nan() {
        return if number.is_sign_negative() { "-nan".into() } else { "nan".into() };
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let digits = format!("{number:.*e}", precision - 1);
    let (mantissa, exponent) = digits.split_once('e').expect("an exponent");
    let exponent: i32 = exponent.parse().expect("a number");
    let places = i32::try_from(precision).expect("a small number") - 1 - exponent;
    if exponent >= -4 && places >= 0 {
        let places = usize::try_from(places).expect("not negative");
        return without_zeros(&format!("{number:.places$}")).to_owned();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs())
}

fn without_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// A number at the beginning of a text.
pub struct Prefix {
    pub number: f64,
    pub len: usize,
    /// The number is too large or too small for a double.
    pub is_out_of_range: bool,
}

/// As `strtod`, without hexadecimal numbers and without leading blanks.
pub fn prefix(text: &[u8]) -> Option<Prefix> {
    let sign = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let is_negative = text.first() == Some(&b'-');
    let rest = &text[sign..];
    for (name, number) in [("infinity", f64::INFINITY), ("inf", f64::INFINITY), ("nan", f64::NAN)] {
        if rest.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name.as_bytes())) {
            let number = if is_negative { -number } else { number };
            return Some(Prefix { number, len: sign + name.len(), is_out_of_range: false });
        }
    }
    let digits = |from: usize| rest[from.min(rest.len())..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut len = digits(0);
    let mut found = len;
    if rest.get(len) == Some(&b'.') {
        found += digits(len + 1);
        len += if found > 0 { 1 + digits(len + 1) } else { 0 };
    }
    if found == 0 {
        return None;
    }
    let is_zero = rest[..len].iter().all(|byte| matches!(byte, b'0' | b'.'));
    if matches!(rest.get(len), Some(b'e' | b'E')) {
        let signed = 1 + usize::from(matches!(rest.get(len + 1), Some(b'+' | b'-')));
        if digits(len + signed) > 0 {
            len += signed + digits(len + signed);
        }
    }
    let len = sign + len;
    let number: f64 = std::str::from_utf8(&text[..len]).expect("digits").parse().expect("a number");
    Some(Prefix { number, len, is_out_of_range: number.is_infinite() || number == 0.0 && !is_zero })
}
