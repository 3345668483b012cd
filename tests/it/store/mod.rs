//! The store against a real Redis: each script does what the in-memory store does, or nothing.

mod arguments;
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
mod forward;
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
mod stats;
mod together;
mod turns;
mod wake;
mod watching;

/// The text of a file in `lua/`, or in the directory `PUNCTUAL_TEST_LUA`, which has the same files with one bug.
fn lua(name: &str) -> String {
    let directory = std::env::var("PUNCTUAL_TEST_LUA");
    let directory = directory.unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/lua").to_owned());
    let path = format!("{directory}/{name}.lua");
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}
