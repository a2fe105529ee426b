//! `pgpalisade package-files`: man pages, completions and the annotated configuration, made from the command line and
//! the table of keys, for who builds packages.

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Failure, failed};
use crate::config::example;

/// Write man pages, shell completions and the annotated configuration into a directory
#[derive(Debug, clap::Args)]
pub(super) struct PackageFilesArgs {
    /// The directory: man pages go to man/, completions to completions/, the configuration to pgpalisade.toml
    directory: PathBuf,
}

/// Writes them.
pub(super) fn run(args: &PackageFilesArgs) -> Result<(), Failure> {
    write(&args.directory).map_err(failed)
}

fn write(directory: &Path) -> io::Result<()> {
    let (man, completions) = (directory.join("man"), directory.join("completions"));
    std::fs::create_dir_all(&man)?;
    std::fs::create_dir_all(&completions)?;
    std::fs::write(directory.join("pgpalisade.toml"), example())?;
    let command = Cli::command();
    let name = command.get_name().to_owned();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command.clone(), &name, &completions)?;
    }
    clap_mangen::generate_to(command.disable_help_subcommand(true), man)
}
