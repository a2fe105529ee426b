//! The policy in force, and the files that failed to reload: for metrics.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use pgpalisade_policies::Mode;
use pgpalisade_server::metrics::family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
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
#[derive(Debug, Clone)]
pub(crate) struct InForce(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    policy: String,
    /// Whether nothing is refused, whatever the policy says.
    mode: Mode,
    /// Files whose present contents are not in force.
    refused: Vec<Reread>,
}

impl InForce {
    pub(crate) fn new(policy: String, mode: Mode) -> Self {
        Self(Arc::new(Mutex::new(State {
            policy,
            mode,
            refused: Vec::new(),
        })))
    }

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
        let (name, help) = (
            "pgpalisade_policy_info",
            "The policy in force, by the SHA-256 of its file.",
        );
        let (one, mode) = (ConstGauge::new(1_u32), state.mode.as_ref());
        let mut policy = encoder.encode_descriptor(name, help, None, one.metric_type())?;
        one.encode(policy.encode_family(&[("sha256", state.policy.as_str()), ("mode", mode)])?)?;
        let help = "Whether the files read last are in force.";
        let files = Reread::VARIANTS.iter().map(|file| {
            let is_ok = u32::from(!state.refused.contains(file));
            (file.into(), ConstGauge::new(is_ok))
        });
        family(encoder, "pgpalisade_reload_ok", help, "file", files)
    }
}
