//! The store against a real Redis: each script does what the in-memory store does, or nothing.

mod bench;
mod bounds;
mod call;
mod case;
mod claims;
mod connection;
mod content;
mod durability;
mod external;
mod external_limits;
mod external_moves;
mod faults;
mod flows;
mod groups;
mod header;
mod history;
mod include;
mod injection;
mod model;
mod moving;
mod operation;
mod produce;
mod property;
mod record;
mod rights;
mod rows;
mod scene;
mod scenes;
mod schedules;
mod together;
mod turns;
mod wake;
mod watching;

/// The text of a file in `lua/`.
fn lua(name: &str) -> String {
    let path = format!("{}/lua/{name}.lua", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
