//! The program `tonnage`: all of it is in the library beside it.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    tonnage_cli::command(std::env::args_os()).into()
}
