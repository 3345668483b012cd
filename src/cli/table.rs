//! A table for people.

/// Columns as wide as their widest cell, two spaces apart.
pub fn text(header: &[&str], rows: &[Vec<String>]) -> String {
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
    let lines: Vec<String> = std::iter::once(&header).chain(rows).map(|row| line(row)).collect();
    lines.join("\n")
}
