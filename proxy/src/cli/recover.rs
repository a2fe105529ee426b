//! `pgpalisade recover`: reconciles the authority with the cluster after a disaster.

use std::time::Duration;

use pgpalisade_authority::{Cluster, OpenError};
use pgpalisade_takeover::{Recovery, WitnessMode};

use super::settings::Settings;
use super::text::print;
use super::{Failure, configuration, failed, run_to_end};
use crate::config::Config;
use crate::{logging, store};

/// Ample for a healthy cluster to end its sessions.
const WITHIN: Duration = Duration::from_secs(60);
/// Printed if the marks and the record show nothing to do.
const IN_STEP: &str = "Nothing to reconcile. After a restore of the authority run it with --end-all-sessions all the \
    same: sessions that registered after the backup are missing from it, and no mark shows that.\n";
/// Forgotten marks that are listed one by one.
const LISTED: usize = 20;

/// Reconcile the authority with the cluster after a restore, loss or upgrade
///
/// For when "serve" refuses to start because the authority has forgotten marks (it was restored from an older
/// snapshot, or lost), or because another cluster or timeline is on record (a major upgrade, a restored dump, a
/// failover that was undone). Stop all proxies of the cluster first. It raises the marks to those that the cluster
/// has seen, ends EVERY client session of the cluster, and puts the cluster on record. No mark falls. Without
/// --end-all-sessions it only says what it would do, and exits with 1 if there is something to do.
#[derive(Debug, clap::Args)]
pub(super) struct RecoverArgs {
    /// Do it, and end every client session of the cluster, including those that are not fenced
    #[arg(long)]
    end_all_sessions: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Reports what to do, and does it with `--end-all-sessions`.
pub(super) fn run(args: &RecoverArgs) -> Result<(), Failure> {
    let config = configuration(&args.settings)?;
    let _log = logging::init(&config.log).map_err(failed)?;
    run_to_end(recover(&config, args))?
}

async fn recover(config: &Config, args: &RecoverArgs) -> Result<(), Failure> {
    let opened = if args.end_all_sessions {
        store::open(config).await
    } else {
        store::open_existing(config).await
    };
    let authority = opened.map_err(|error| match error {
        OpenError::Missing(_) => failed(format!(
            "{error}; if the store is lost, --end-all-sessions creates an empty one"
        )),
        error => failed(error),
    })?;
    let control = config.control.expose().clone();
    let recovery = Recovery::look(control, authority.as_ref(), config.takeover.witness, WITHIN)
        .await
        .map_err(failed)?;
    describe(&recovery, config).map_err(failed)?;
    let in_step = recovery.recorded == Some(recovery.cluster) && recovery.forgotten.is_empty();
    if !args.end_all_sessions && in_step {
        return print(IN_STEP).map_err(failed);
    }
    if !args.end_all_sessions {
        return Err(failed(
            "nothing was changed; add --end-all-sessions to do it",
        ));
    }
    let witness = config.takeover.witness;
    let performed = recovery.perform(authority.as_ref(), witness, WITHIN).await;
    performed.map_err(failed)?;
    print("Done. The proxies can be started again.\n").map_err(failed)
}

fn describe(recovery: &Recovery, config: &Config) -> std::io::Result<()> {
    let recorded = recovery
        .recorded
        .map_or("none".to_owned(), |cluster| cluster.to_string());
    print(&format!(
        "cluster             {}\non record           {recorded}\nauthority           {}\n\
         marks to bring up   {}\nsessions to end     {}\n",
        recovery.cluster,
        config.takeover.authority,
        recovery.forgotten.len(),
        recovery.sessions,
    ))?;
    for (scope, kept, mark) in recovery.forgotten.iter().take(LISTED) {
        let kept = kept.map_or("none".to_owned(), |rank| rank.to_string());
        print(&format!("  {scope}: {kept} -> {}\n", mark.rank()))?;
    }
    let more = recovery.forgotten.len().saturating_sub(LISTED);
    if more > 0 {
        print(&format!("  and {more} more\n"))?;
    }
    let system = |cluster: &Cluster| cluster.system_identifier;
    if recovery
        .recorded
        .as_ref()
        .map(system)
        .is_some_and(|one| one != system(&recovery.cluster))
    {
        print(
            "Another cluster is on record. Does it replace that one? If not, \"upstream\" or \"authority\" is wrong: \
             proxies that serve the other one would be refused from then on.\n",
        )?;
    }
    if config.takeover.witness == WitnessMode::Off {
        print("The witness is off, so forgotten marks cannot be detected.\n")?;
    }
    Ok(())
}
