//! One round of pgbench.

use std::process::Stdio;

use crate::postgres::Postgres;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) clients: u32,
    pub(crate) protocol: &'static str,
    pub(crate) seconds: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(crate) transactions: f64,
    /// Per second, without the time to connect.
    pub(crate) rate: f64,
}

/// SELECTs by primary key against `port`.
pub(crate) fn round(postgres: &Postgres, port: u16, load: Load) -> Result<Report, String> {
    let threads = load.clients.min(2).to_string();
    let (clients, seconds) = (load.clients.to_string(), load.seconds.to_string());
    let mut command = postgres.pgbench(port)?;
    command.args([
        "-n",
        "-S",
        "-M",
        load.protocol,
        "-c",
        &clients,
        "-j",
        &threads,
        "-T",
        &seconds,
        "postgres",
    ]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    let (text, said) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let transactions = number(&text, "number of transactions actually processed: ");
    let failed = number(&text, "number of failed transactions: ");
    match (
        output.status.success(),
        transactions,
        number(&text, "tps = "),
        failed,
    ) {
        (true, Some(transactions), Some(rate), None | Some(0.0)) => {
            Ok(Report { transactions, rate })
        }
        _ => Err(format!("{command:?}: {text}{said}")),
    }
}

fn number(text: &str, label: &str) -> Option<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(label))?;
    rest.split(|c: char| c != '.' && !c.is_ascii_digit())
        .next()?
        .parse()
        .ok()
}
