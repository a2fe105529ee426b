//! The proxy as a child process.

use std::path::Path;
use std::process::Command;

use crate::HarnessError;
use crate::child::{ProcessGroup, Running};
use crate::patience::Patience;

/// A command of the proxy, without the caller's settings for another proxy.
pub fn command(binary: &Path, group: ProcessGroup) -> Command {
    let mut command = group.command(binary);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PG") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
    command
}

/// Waits until a proxy accepts connections, and returns its port.
pub fn wait_until_listening(proxy: &mut Running, patience: &Patience) -> Result<u16, HarnessError> {
    let port = patience.until(|| match proxy.ended() {
        Some(_) => Some(None),
        None => proxy.output().lines().find_map(port_of).map(Some),
    })?;
    port.flatten().ok_or_else(|| proxy.failure())
}

/// `listening on 127.0.0.1:40001, upstream ...`.
fn port_of(line: &str) -> Option<u16> {
    let address = line.strip_prefix("listening on ")?.split_once(", ")?.0;
    address.rsplit_once(':')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines() {
        let ready = "listening on 127.0.0.1:40001, upstream /x, authority y";
        assert_eq!(port_of(ready), Some(40001));
        assert_eq!(port_of("listening on 127.0.0.1:400"), None, "half a line");
        assert_eq!(port_of("something else"), None);
    }
}
