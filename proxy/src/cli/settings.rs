//! The flags of all configuration keys, made from the table of keys.
//!
//! clap does not check the values: the configuration does, so that all errors come at once. A command's own flag with
//! the name of a key does not set the key. Only `serve` lists every key in its help.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Flags, KEYS, Key, KeySpec, TomlType};

const CONFIG: &str = "config";
const SERVE: &str = "serve";
/// Keys of every command that reads the cluster or the authority.
const SHARED: [Key; 5] = [
    Key::Upstream,
    Key::Control,
    Key::Authority,
    Key::Witness,
    Key::TakeoverTimeout,
];
const OTHERS: &str = "It also takes every other flag, variable and key of \"pgpalisade serve\", so that both can share \
    one configuration.";

#[derive(Clone)]
pub(super) struct Settings(pub(super) Flags);

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A DSN may hold a password.
        f.write_str("Settings(..)")
    }
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new(CONFIG)
            .long(CONFIG)
            .value_name("FILE")
            .value_parser(clap::value_parser!(PathBuf))
            .help("TOML file with the same keys; flags and environment win over it [env: PGPALISADE_CONFIG]");
        let serves = command.get_name() == SERVE;
        let command = if serves {
            command.arg(config)
        } else {
            command.arg(config).after_help(OTHERS)
        };
        KEYS.iter().fold(command, |command, spec| {
            if command.get_arguments().any(|arg| arg.get_id() == spec.name) {
                return command;
            }
            let (short, long) = help(spec);
            let arg = Arg::new(spec.name)
                .long(spec.flag())
                .value_name(spec.value_name)
                .help_heading(spec.heading)
                .hide(!serves && !SHARED.contains(&spec.key))
                .action(ArgAction::Append)
                .help(short)
                .long_help(long);
            command.arg(match spec.shape {
                TomlType::Switch => arg
                    .num_args(0..=1)
                    .require_equals(true)
                    .default_missing_value("on"),
                _ => arg,
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// The texts of `-h` and `--help`.
fn help(spec: &KeySpec) -> (String, String) {
    let default = spec
        .default()
        .map_or_else(String::new, |text| format!(" [default: {text}]"));
    let mut places = format!("[env: {}] [key: {}]", spec.env(), spec.name);
    if spec.shape == TomlType::List {
        places.push_str(" (several: commas in the variable, an array in the file)");
    }
    let more = if spec.more.is_empty() {
        String::new()
    } else {
        format!("\n\n{}", spec.more)
    };
    let short = format!("{}{default}", spec.help);
    let long = format!("{}{default}{more}\n\n{places}", spec.help);
    (short, long)
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |spec: &&KeySpec| {
            // A flag of another type is the command's own.
            let texts = matches.try_get_many::<String>(spec.name).ok()??;
            Some((spec.key, texts.cloned().collect()))
        };
        Ok(Self(Flags {
            config_file: matches.get_one::<PathBuf>(CONFIG).cloned(),
            values: KEYS.iter().filter_map(given).collect(),
        }))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
