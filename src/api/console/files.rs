//! The files of the console, compiled in.

pub const INDEX: &str = include_str!("page/index.html");

/// Content type of a script.
pub const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The clock and the inbox of `punctual dev`.
pub const DEVELOPMENT: &str = include_str!("page/development.js");

/// Name, content type, text.
pub const FILES: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("page/style.css")),
    ("icon.svg", "image/svg+xml", include_str!("page/icon.svg")),
    ("actions.js", SCRIPT, include_str!("page/actions.js")),
    ("ahead.js", SCRIPT, include_str!("page/ahead.js")),
    ("api.js", SCRIPT, include_str!("page/api.js")),
    ("app.js", SCRIPT, include_str!("page/app.js")),
    ("charts.js", SCRIPT, include_str!("page/charts.js")),
    ("dead.js", SCRIPT, include_str!("page/dead.js")),
    ("dialog.js", SCRIPT, include_str!("page/dialog.js")),
    ("edit.js", SCRIPT, include_str!("page/edit.js")),
    ("find.js", SCRIPT, include_str!("page/find.js")),
    ("flows.js", SCRIPT, include_str!("page/flows.js")),
    ("format.js", SCRIPT, include_str!("page/format.js")),
    ("history.js", SCRIPT, include_str!("page/history.js")),
    ("hours.js", SCRIPT, include_str!("page/hours.js")),
    ("message.js", SCRIPT, include_str!("page/message.js")),
    ("messages.js", SCRIPT, include_str!("page/messages.js")),
    ("overview.js", SCRIPT, include_str!("page/overview.js")),
    ("parts.js", SCRIPT, include_str!("page/parts.js")),
    ("payload.js", SCRIPT, include_str!("page/payload.js")),
    ("preact.js", SCRIPT, include_str!("page/preact.js")),
    ("schedules.js", SCRIPT, include_str!("page/schedules.js")),
    ("sinks.js", SCRIPT, include_str!("page/sinks.js")),
    ("timeline.js", SCRIPT, include_str!("page/timeline.js")),
];
