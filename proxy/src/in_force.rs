//! The policy in force, and the files that failed to reload: for metrics.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;

/// Files that a reload reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reread {
    /// Applies at the next start.
    Config,
    Policy,
    Tls,
    /// The users of `auth_file`.
    Users,
    ConsoleUsers,
}

impl Reread {
    /// In the order of the metric.
    pub(crate) const ALL: [Self; 5] = [
        Self::Config,
        Self::Policy,
        Self::Tls,
        Self::Users,
        Self::ConsoleUsers,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Config => "config",
            Self::Policy => "policy",
            Self::Tls => "tls",
            Self::Users => "users",
            Self::ConsoleUsers => "console_users",
        }
    }
}

/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub(crate) struct InForce(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// SHA-256 of the policy file; empty without one.
    policy: String,
    /// Files whose present contents are not in force.
    refused: Vec<Reread>,
}

impl InForce {
    /// Records a policy that is in force from now on.
    pub(crate) fn set_policy(&self, sha256: String) {
        self.0.lock().policy = sha256;
    }

    /// Records a reload in which these files had errors.
    pub(crate) fn set_refused(&self, refused: Vec<Reread>) {
        self.0.lock().refused = refused;
    }
}

impl Collector for InForce {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.lock();
        let one = ConstGauge::new(1_u32);
        let (name, help) = (
            "pgpalisade_policy_info",
            "The policy in force, by the SHA-256 of its file.",
        );
        let mut info = encoder.encode_descriptor(name, help, None, one.metric_type())?;
        let sha256 = [("sha256", state.policy.as_str())];
        one.encode(info.encode_family(&sha256)?)?;
        let (name, help) = (
            "pgpalisade_reload_ok",
            "Whether the files read last are in force.",
        );
        let mut family = encoder.encode_descriptor(name, help, None, one.metric_type())?;
        for file in Reread::ALL {
            let ok = ConstGauge::new(u32::from(!state.refused.contains(&file)));
            ok.encode(family.encode_family(&[("file", file.name())])?)?;
        }
        Ok(())
    }
}
