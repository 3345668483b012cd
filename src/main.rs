use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    punctual::cli::run().await
}
