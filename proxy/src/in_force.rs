//! The policy in force, and the files that failed to reload: for metrics.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use pgpalisade_server::metrics::family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::gauge::ConstGauge;
use strum::{IntoStaticStr, VariantArray};

/// Files that a reload reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Reread {
    /// Applies at the next start.
    Config,
    Policy,
    Tls,
    Users,
    ConsoleUsers,
}

/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct InForce(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    policy: String,
    /// Files whose present contents are not in force.
    refused: Vec<Reread>,
}

impl InForce {
    pub(crate) fn set_policy(&self, sha256: String) {
        self.0.lock().policy = sha256;
    }

    pub(crate) fn set_refused(&self, refused: Vec<Reread>) {
        self.0.lock().refused = refused;
    }
}

impl Collector for InForce {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.lock();
        let encoder = &mut encoder;
        let help = "The policy in force, by the SHA-256 of its file.";
        let policy = [(state.policy.as_str(), ConstGauge::new(1_u32))];
        family(encoder, "pgpalisade_policy_info", help, "sha256", policy)?;
        let help = "Whether the files read last are in force.";
        let files = Reread::VARIANTS.iter().map(|file| {
            let is_ok = u32::from(!state.refused.contains(file));
            (file.into(), ConstGauge::new(is_ok))
        });
        family(encoder, "pgpalisade_reload_ok", help, "file", files)
    }
}
