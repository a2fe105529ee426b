//! Reloading, at a SIGHUP or at a RELOAD of the console.

use std::sync::Arc;

use pgpalisade_rejection_log::RejectionLog;
use pgpalisade_server::accounts::{Accounts, Logins};
use pgpalisade_server::certificates::Certificates;
use tokio::sync::{mpsc, oneshot};

use super::settings::Settings;
use crate::config::{Config, Environment, RawConfig};
use crate::console::Reloaded;
use crate::in_force::{InForce, Reread};
use crate::serve::PolicyReloaded;
use crate::service_manager;

pub(super) struct Reload {
    pub(super) begun: Arc<(Settings, RawConfig)>,
    pub(super) rejections: RejectionLog,
    pub(super) certificates: Arc<Certificates>,
    pub(super) logins: Logins,
    pub(super) operators: Option<Arc<Accounts>>,
    pub(super) policy: mpsc::Sender<PolicyReloaded>,
    pub(super) in_force: InForce,
}

impl Reload {
    /// Reloads once per request, in order.
    pub(super) async fn run(self, mut asked: mpsc::Receiver<Option<Reloaded>>) {
        while let Some(who_asks) = asked.recv().await {
            service_manager::reloading();
            self.rejections.reopen();
            let (begun, certificates) = (Arc::clone(&self.begun), Arc::clone(&self.certificates));
            let (logins, operators) = (self.logins.clone(), self.operators.clone());
            // Reads elsewhere, because a file may be slow.
            let files = tokio::task::spawn_blocking(move || {
                let of_users = |accounts: &Accounts| accounts.reload().map_err(|e| e.to_string());
                let tls = certificates.reload().map_err(|error| error.to_string());
                let users = logins.reload().map_err(|error| error.to_string());
                let all = [
                    (Reread::Config, say_what_changed(&begun.0, &begun.1)),
                    (Reread::Tls, tls),
                    (Reread::Users, users),
                    (
                        Reread::ConsoleUsers,
                        operators.as_deref().map_or(Ok(()), of_users),
                    ),
                ];
                let wrong = |(file, read): (Reread, Result<(), String>)| Some((file, read.err()?));
                all.into_iter().filter_map(wrong).collect::<Vec<_>>()
            });
            let mut wrong = files.await.unwrap_or_else(|error| {
                tracing::error!(%error, "reloading files");
                Reread::ALL.map(|file| (file, error.to_string())).into()
            });
            let (done, is_done) = oneshot::channel();
            if self.policy.send(done).await.is_ok() {
                // A dropped answer means that the proxy ends.
                let refused = is_done.await.ok().and_then(Result::err);
                wrong.extend(refused.map(|error| (Reread::Policy, error)));
            }
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
}

fn say_what_changed(settings: &Settings, begun_with: &RawConfig) -> Result<(), String> {
    let environment = Environment::of_this_process();
    let now = RawConfig::collect(&settings.0, &environment);
    if let Err(errors) = Config::from_raw(now.clone(), &environment) {
        tracing::error!(error = %errors, "the configuration is not valid: a restart would fail");
        return Err(format!("a restart would fail: {errors}"));
    }
    let changed = now.differing(begun_with);
    if !changed.is_empty() {
        tracing::warn!("needs a restart: {}", changed.join(", "));
    }
    Ok(())
}
