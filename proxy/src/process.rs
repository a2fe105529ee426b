//! Facts of the kernel about this process: its user, and its resources, under Prometheus' standard names.

use std::fmt;
use std::time::SystemTime;

use pgpalisade_server::metrics::{family, gauge};
use procfs::WithCurrentSystemInfo as _;
use procfs::process::Process as Itself;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use rustix::process::{Resource, geteuid, getrlimit};

/// The user that this process runs as, by the name that the system's databases give it.
pub(crate) fn user() -> String {
    whoami::username().unwrap_or_else(|_| format!("uid {}", geteuid().as_raw()))
}

/// Asks the kernel each time.
#[derive(Debug)]
pub(crate) struct Process {
    started: SystemTime,
}

impl Default for Process {
    fn default() -> Self {
        let started = SystemTime::now();
        Self { started }
    }
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let encoder = &mut encoder;
        let (name, help) = ("pgpalisade_build_info", "The running version.");
        let version = [(env!("CARGO_PKG_VERSION"), ConstGauge::new(1_u32))];
        family(encoder, name, help, "version", version)?;
        let itself = Itself::myself().ok();
        if let Some(Ok(stat)) = itself.as_ref().map(Itself::stat) {
            let ticks = (stat.utime + stat.stime) as f64;
            let cpu = ConstCounter::new(ticks / procfs::ticks_per_second() as f64);
            let (name, help) = ("process_cpu_seconds", "CPU time.");
            let metric = encoder.encode_descriptor(name, help, None, cpu.metric_type())?;
            cpu.encode(metric)?;
            let (name, help) = ("process_resident_memory_bytes", "Resident memory.");
            gauge(encoder, name, help, stat.rss_bytes().get() as f64)?;
            let (name, help) = ("process_virtual_memory_bytes", "Address space.");
            gauge(encoder, name, help, stat.vsize as f64)?;
            gauge(
                encoder,
                "process_threads",
                "Threads.",
                stat.num_threads as f64,
            )?;
        }
        if let Some(Ok(open)) = itself.map(|itself| itself.fd_count()) {
            let help = "Open files and sockets.";
            gauge(encoder, "process_open_fds", help, open as f64)?;
        }
        if let Some(most) = getrlimit(Resource::Nofile).current {
            let help = "Limit of open files and sockets.";
            gauge(encoder, "process_max_fds", help, most as f64)?;
        }
        let started = self.started.duration_since(SystemTime::UNIX_EPOCH);
        let (name, help) = ("process_start_time_seconds", "Start time of the proxy.");
        let started = started.unwrap_or_default().as_secs_f64();
        gauge(encoder, name, help, started)
    }
}
