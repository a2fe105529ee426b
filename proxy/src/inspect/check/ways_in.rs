//! Whether leaders' roles can reach PostgreSQL without the proxies.

use std::collections::BTreeSet;
use std::net::IpAddr;

use pgpalisade_policies::Policy;
use pgpalisade_takeover::ControlError;
use pgpalisade_takeover::cluster_lock::Proxy;

use super::super::cluster::{self, Client, HbaRule};
use super::super::finding::{CheckResult, listed};
use super::super::hosts::Chosen;

const ADVICE: &str = "let these roles in from the proxies' addresses only (pg_hba.conf), and point their programs to a \
                      proxy: connections that bypass it are not fenced";

pub(super) async fn check(
    control: &Chosen,
    policy: Option<&Policy>,
    proxies: &[Proxy],
) -> Result<CheckResult, ControlError> {
    let connection = &control.connection;
    let clients = connection.look(cluster::clients).await?;
    let mut pids: BTreeSet<i32> = proxies
        .iter()
        .filter_map(|proxy| proxy.holder.pid)
        .collect();
    pids.insert(control.rights.backend.pid);
    let (theirs, others): (Vec<Client>, Vec<Client>) = clients
        .into_iter()
        .partition(|client| pids.contains(&client.pid));
    let addresses: BTreeSet<Option<IpAddr>> = theirs.iter().map(|client| client.address).collect();

    let is_named = |role: &String| policy.is_some_and(|policy| policy.names_as_leader(role));
    let roles = connection.look(cluster::roles).await?;
    let mut may_lead: BTreeSet<String> = roles.into_iter().filter(is_named).collect();
    if may_lead.is_empty() {
        // The policy names no role, so any may lead.
        let connected = others.iter().map(|client| &client.role);
        may_lead.extend(
            connected
                .filter(|role| **role != control.rights.role)
                .cloned(),
        );
    }
    if may_lead.is_empty() {
        return Ok(CheckResult::ok(
            "no client is connected, and the policy names no role of a leader",
        ));
    }
    let is_past =
        |client: &&Client| may_lead.contains(&client.role) && !addresses.contains(&client.address);
    let past: BTreeSet<String> = others
        .iter()
        .filter(is_past)
        .map(Client::to_string)
        .collect();
    if !past.is_empty() {
        let past = listed(past);
        return Ok(CheckResult::warn(
            format!("connected from where no proxy is: {past}"),
            ADVICE,
        ));
    }
    by_file(control, &may_lead, &addresses).await
}

/// The check by pg_hba.conf, if the control role may read it.
async fn by_file(
    control: &Chosen,
    may_lead: &BTreeSet<String>,
    proxies: &BTreeSet<Option<IpAddr>>,
) -> Result<CheckResult, ControlError> {
    let connection = &control.connection;
    let roles = listed(may_lead.iter().cloned());
    let Some(rules) = connection.look(cluster::hba_rules).await? else {
        return Ok(CheckResult::ok(format!(
            "{roles}: not connected from elsewhere now; pg_hba.conf is not checked, because role {} may not read \
             pg_hba_file_rules",
            control.rights.role
        )));
    };
    let mut open = Vec::new();
    for role in may_lead {
        let groups = connection.look(async |client| cluster::groups(client, role).await);
        let groups = groups.await?;
        let lines = ways_in(&rules, role, &groups, proxies);
        open.extend(lines.map(|rule| format!("{role} by line {}", rule.line)));
    }
    if open.is_empty() {
        return Ok(CheckResult::ok(format!(
            "{roles}: pg_hba.conf lets them in from the proxies only"
        )));
    }
    let open = listed(open);
    Ok(CheckResult::warn(
        format!("pg_hba.conf lets roles in from elsewhere: {open}"),
        ADVICE,
    ))
}

/// Lines for TCP that let a role in from addresses without a proxy, up to one that rejects all.
/// <https://www.postgresql.org/docs/15/auth-pg-hba-conf.html>
fn ways_in<'a>(
    rules: &'a [HbaRule],
    role: &str,
    groups: &[String],
    proxies: &BTreeSet<Option<IpAddr>>,
) -> impl Iterator<Item = &'a HbaRule> {
    let is_for_role = |user: &String| match user.strip_prefix('+') {
        Some(group) => groups.iter().any(|of| of == group),
        // From PostgreSQL 16 on, "/" begins a regular expression, which is not evaluated here.
        None => user == "all" || user == role || user.starts_with('/'),
    };
    let is_proxy = |rule: &HbaRule| {
        rule.single_address().is_some_and(|address| {
            let same = |proxy: &IpAddr| {
                *proxy == address || (proxy.is_loopback() && address.is_loopback())
            };
            proxies.iter().flatten().any(same)
        })
    };
    let mut matching: Vec<&HbaRule> = Vec::new();
    for rule in rules
        .iter()
        .filter(|rule| rule.users.iter().any(is_for_role))
    {
        match (rule.rejects, rule.is_for_all_addresses()) {
            (true, true) => break,
            (true, false) => {}
            (false, _) if is_proxy(rule) => {}
            (false, _) => matching.push(rule),
        }
    }
    matching.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(line: i32, user: &str, address: &str, netmask: Option<&str>, method: &str) -> HbaRule {
        HbaRule {
            line,
            users: vec![user.to_owned()],
            address: address.to_owned(),
            netmask: netmask.map(|mask| mask.parse().unwrap()),
            rejects: method == "reject",
        }
    }

    #[test]
    fn lines_that_let_a_role_in_from_elsewhere() {
        let one = Some("255.255.255.255");
        let proxies = BTreeSet::from([
            None,
            Some("10.0.0.7".parse().unwrap()),
            Some("127.0.0.1".parse().unwrap()),
        ]);
        for (rules, expected) in [
            (vec![rule(1, "app", "10.0.0.7", one, "trust")], vec![]),
            (vec![rule(1, "app", "10.0.0.8", one, "trust")], vec![1]),
            (
                vec![rule(1, "app", "10.0.0.0", Some("255.255.255.0"), "md5")],
                vec![1],
            ),
            (
                vec![rule(
                    1,
                    "app",
                    "::1",
                    Some("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
                    "md5",
                )],
                vec![],
            ),
            (vec![rule(1, "all", "all", None, "md5")], vec![1]),
            (vec![rule(1, "app", "samenet", None, "md5")], vec![1]),
            (vec![rule(1, "other", "all", None, "md5")], vec![]),
            (vec![rule(1, "+leaders", "all", None, "md5")], vec![1]),
            (vec![rule(1, "+others", "all", None, "md5")], vec![]),
            (vec![rule(1, "/^a", "all", None, "md5")], vec![1]),
            // The first line that matches decides.
            (
                vec![
                    rule(1, "app", "all", None, "reject"),
                    rule(2, "all", "all", None, "md5"),
                ],
                vec![],
            ),
            (
                vec![
                    rule(1, "app", "10.0.0.8", one, "reject"),
                    rule(2, "all", "all", None, "md5"),
                ],
                vec![2],
            ),
            (
                vec![
                    rule(1, "other", "all", None, "reject"),
                    rule(2, "all", "all", None, "md5"),
                ],
                vec![2],
            ),
            (
                vec![
                    rule(1, "all", "all", None, "md5"),
                    rule(2, "app", "all", None, "reject"),
                ],
                vec![1],
            ),
        ] {
            let groups = ["leaders".to_owned()];
            let lines: Vec<i32> = ways_in(&rules, "app", &groups, &proxies)
                .map(|rule| rule.line)
                .collect();
            assert_eq!(lines, expected, "{rules:?}");
        }
    }
}
