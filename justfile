# The usual commands: `just NAME`. CONTRIBUTING.md explains them. `just` is a package of Debian 13 and of crates.io.

build:
    cargo build --locked

# All tests
test *ARGUMENTS:
    tests/run.sh {{ARGUMENTS}}

# Tests with NAME in their path
one NAME:
    cargo test --locked {{NAME}}

# All other checks of CI
lint:
    tests/run.sh --lint

# Faults at random, and a judge: docs/reliability.md
campaign *ARGUMENTS:
    tests/campaign.sh {{ARGUMENTS}}

# Edits of the scripts and of the code that tests must find: docs/reliability.md
mutants *KIND:
    tests/run.sh --mutants {{KIND}}

# Pages, their commands and the tables of settings
pages:
    cargo test --locked --test it documents::

bench *ROWS:
    benches/run.sh --quick {{ROWS}}

release:
    cargo build --locked --profile dist
