//! `docs/operations.md`: its commands run, those of the blocks that name this file.
