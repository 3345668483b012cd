//! Fields of text lines. Numbers, `true` and `false` are bare; all other values are in double quotes, whether given as
//! text, by `Display` or by `Debug`. Line ends and control characters are escaped, so an event is one line.

use std::fmt::{self, Debug};

use tracing::field::{Field, Visit};
use tracing_subscriber::{
    field::RecordFields,
    fmt::{FormatFields, format::Writer},
};

pub struct Fields;

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visitor = FieldVisitor { writer, first: true, result: Ok(()) };
        fields.record(&mut visitor);
        visitor.result
    }
}

struct FieldVisitor<'writer> {
    writer: Writer<'writer>,
    first: bool,
    result: fmt::Result,
}

impl Visit for FieldVisitor<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        // Records of the `log` crate have fields of their own metadata.
        if self.result.is_ok() && !field.name().starts_with("log.") {
            self.result = self.write(field.name(), value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

impl FieldVisitor<'_> {
    fn write(&mut self, name: &str, value: &str) -> fmt::Result {
        if !std::mem::take(&mut self.first) {
            self.writer.write_char(' ')?;
        }
        if name == "message" {
            return escape(&mut self.writer, value, false);
        }
        write!(self.writer, "{}=", name.trim_start_matches("r#"))?;
        if is_bare(value) {
            return self.writer.write_str(value);
        }
        self.writer.write_char('"')?;
        escape(&mut self.writer, value, true)?;
        self.writer.write_char('"')
    }
}

fn is_bare(value: &str) -> bool {
    let is_number = value.starts_with(|c: char| c == '-' || c.is_ascii_digit()) && value.parse::<f64>().is_ok();
    is_number || matches!(value, "true" | "false")
}

fn escape(writer: &mut Writer<'_>, text: &str, quoted: bool) -> fmt::Result {
    for c in text.chars() {
        if c.is_control() || quoted && matches!(c, '"' | '\\') {
            write!(writer, "{}", c.escape_default())?;
        } else {
            writer.write_char(c)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log_lines::LogLines;

    #[test]
    fn a_value_looks_the_same_however_it_was_given() {
        let log = LogLines::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_ansi(false).without_time().with_target(false).fmt_fields(Fields);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let name = "a b";
            tracing::info!(name, shown = %name, "{}", "two\nlines \"here\"");
            tracing::info!(id = "7", shown = %"7", number = 7, float = -1.5, yes = true, none = None::<&str>);
            tracing::info!(error = %"\"x\" \\ \x1b[2J\u{202e}ü", took = ?std::time::Duration::from_secs(2), empty = "");
        });
        let log = log.take();
        let lines: Vec<_> = log.iter().map(|line| line.trim_start_matches("INFO ")).collect();
        assert_eq!(
            lines,
            [
                r#"two\nlines "here" name="a b" shown="a b""#,
                "id=7 shown=7 number=7 float=-1.5 yes=true",
                "error=\"\\\"x\\\" \\\\ \\u{1b}[2J\u{202e}ü\" took=\"2s\" empty=\"\"",
            ]
        );
    }
}
