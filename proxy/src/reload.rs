//! Reloading, at a SIGHUP or at a RELOAD of the console.

use std::path::Path;
use std::sync::Arc;

use pgpalisade_fence::Fence;
use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_server::accounts::{Accounts, Logins};
use pgpalisade_server::certificates::Certificates;
use pgpalisade_takeover::Takeover;
use strum::VariantArray as _;
use tokio::sync::{mpsc, watch};

use crate::config::{Config, Environment, Flags, RawConfig};
use crate::console::Reloaded;
use crate::in_force::{InForce, Reread};
use crate::policy_file;
use crate::service_manager;

/// What a reload reads again, and where it puts it into force.
#[derive(Clone)]
pub(crate) struct Reload {
    pub(crate) begun: Arc<(Flags, RawConfig)>,
    pub(crate) config: Arc<Config>,
    pub(crate) rejections: RejectionLog,
    pub(crate) certificates: Arc<Certificates>,
    pub(crate) logins: Logins,
    pub(crate) operators: Option<Arc<Accounts>>,
    pub(crate) takeover: Takeover,
    pub(crate) fences: watch::Sender<Arc<Fence>>,
    pub(crate) in_force: InForce,
}

impl Reload {
    /// Reloads once per request, in order.
    pub(crate) async fn run(self, mut asked: mpsc::Receiver<Option<Reloaded>>) {
        while let Some(who_asks) = asked.recv().await {
            service_manager::reloading();
            self.rejections.reopen();
            let reload = self.clone();
            // Reads elsewhere, because a file may be slow.
            let files = tokio::task::spawn_blocking(move || reload.files());
            let wrong = files.await.unwrap_or_else(|error| {
                tracing::error!(%error, "reloading files");
                let all = Reread::VARIANTS.iter();
                all.map(|&file| (file, error.to_string())).collect()
            });
            let (refused, wrong): (Vec<_>, Vec<_>) = wrong.into_iter().unzip();
            self.in_force.set_refused(refused);
            service_manager::ready();
            if let Some(who_asks) = who_asks {
                let reloaded = if wrong.is_empty() {
                    Ok(())
                } else {
                    Err(wrong.join("\n"))
                };
                let _gone_meanwhile = who_asks.send(reloaded);
            }
        }
    }

    /// The files that are not in force as they are now, and why.
    fn files(&self) -> Vec<(Reread, String)> {
        let operators = self.operators.as_deref().map_or(Ok(()), Accounts::reload);
        let policy = self.config.policy.file.as_deref();
        let all = [
            (Reread::Config, self.say_what_changed()),
            (
                Reread::Tls,
                self.certificates
                    .reload()
                    .map_err(|error| error.to_string()),
            ),
            (
                Reread::Users,
                self.logins.reload().map_err(|error| error.to_string()),
            ),
            (
                Reread::ConsoleUsers,
                operators.map_err(|error| error.to_string()),
            ),
            (
                Reread::Policy,
                policy.map_or(Ok(()), |path| self.policy(path)),
            ),
        ];
        let wrong = |(file, read): (Reread, Result<(), String>)| Some((file, read.err()?));
        all.into_iter().filter_map(wrong).collect()
    }

    fn say_what_changed(&self) -> Result<(), String> {
        let (flags, begun_with) = &*self.begun;
        let environment = Environment::of_this_process();
        let now = RawConfig::collect(flags, &environment);
        if let Err(errors) = Config::from_raw(now.clone(), &environment) {
            tracing::error!(error = %errors, "the configuration is not valid: a restart would fail");
            return Err(format!("a restart would fail: {errors}"));
        }
        let changed = now.differing(begun_with);
        if !changed.is_empty() {
            let keys = changed.join(", ");
            tracing::warn!("these keys need a restart, or an upgrade in place (SIGUSR2): {keys}");
        }
        Ok(())
    }

    fn policy(&self, path: &Path) -> Result<(), String> {
        let loaded = policy_file::read_for(path, &self.config.takeover.authority);
        let fence = loaded
            .map_err(|errors| errors.to_string())
            .and_then(|loaded| {
                let cells = Arc::clone(self.takeover.marks());
                let fence = Fence::new(loaded.policy, cells, self.config.policy.mode);
                let fence = fence.map_err(|error| error.to_string())?;
                Ok((fence, loaded.sha256))
            });
        let path = path.display();
        let (fence, sha256) = fence.inspect_err(|error| {
            tracing::error!(%path, %error, "the policy file is not valid: the old policy stays in force");
        })?;
        self.fences.send_replace(Arc::new(fence));
        self.in_force.set_policy(sha256);
        tracing::info!(%path, "the policy file was read again and is in force");
        Ok(())
    }
}
