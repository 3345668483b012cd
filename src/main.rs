use std::process::ExitCode;

fn main() -> ExitCode {
    punctual::cli::run()
}
