//! The binary `pgpalisade`. Everything is in the library; see `cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pgpalisade::cli::main()
}
