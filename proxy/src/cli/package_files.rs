//! `pgpalisade package-files`: man pages, completions and the annotated configuration for packages.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, Failure, failed};
use crate::config::example;

/// Write man pages, shell completions and the annotated configuration into a directory
#[derive(Debug, clap::Args)]
pub(super) struct PackageFilesArgs {
    /// The directory: man pages go to man/, completions to completions/, the configuration to pgpalisade.toml
    directory: PathBuf,
}

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
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_pages(&command, &man)
}

/// Writes the pages of a command and of its subcommands, all in man section 8.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        write_pages(inner, directory)?;
    }
    let page = Man::new(command.clone()).section("8").manual("pgpalisade");
    page.generate_to(directory).map(|_written| ())
}
