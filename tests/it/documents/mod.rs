//! The documents match the program: CONTRIBUTING.md, "How pages are tested", has the rules.

mod links;
pub mod page;
mod quickstart;
mod reference;
mod run;
mod settings;
mod shown;
mod stage;
