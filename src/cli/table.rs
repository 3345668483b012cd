//! A table as text.

/// Maximum length of a cell in characters: an error can contain the body of an HTTP reply.
pub const MAX_CELL: usize = 600;

/// The end of a shortened text.
const DOTS: &str = "...";

/// Columns are as wide as their widest cell and two spaces apart. Cells are one line each, without control characters.
pub fn text(header: &[&str], rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| cut(cell, MAX_CELL + DOTS.len())).collect()).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([header[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        padded.join("  ").trim_end().to_owned()
    };
    let header: Vec<String> = header.iter().map(ToString::to_string).collect();
    let lines: Vec<String> = std::iter::once(&header).chain(&rows).map(|row| line(row)).collect();
    lines.join("\n")
}

/// One line of at most `columns` characters, without control characters.
pub fn cut(text: &str, columns: usize) -> String {
    let text = harmless(&text.replace(['\n', '\r', '\t'], " "));
    if text.chars().count() <= columns {
        return text;
    }
    let kept = text.chars().take(columns.saturating_sub(DOTS.len()));
    kept.chain(DOTS.chars()).take(columns).collect()
}

/// Replaces control characters of a terminal, because errors and payloads are external text.
pub fn harmless(text: &str) -> String {
    let shown = |char: char| if char.is_control() && char != '\n' { char::REPLACEMENT_CHARACTER } else { char };
    text.chars().map(shown).collect()
}

#[test]
fn cells_cannot_control_the_terminal() {
    let rows = [vec!["a\x1b[2J\nb".to_owned(), "x".repeat(700)]];
    let table = text(&["ONE", "TWO"], &rows);
    assert_eq!(table.lines().nth(1).unwrap(), format!("a\u{fffd}[2J b  {}...", "x".repeat(600)));
}
