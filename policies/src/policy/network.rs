//! Networks of clients, in CIDR notation.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use super::remark::ValueError;

/// An address, and the number of its first bits that count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

impl Network {
    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address.
    ///
    /// # Errors
    ///
    /// The problem, and what to write instead.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::read(text).map_err(|fault| fault.to_string())
    }

    pub(super) fn read(text: &str) -> Result<Self, ValueError> {
        let single = || text.parse::<IpAddr>().map(IpNet::from);
        let Ok(written) = text.parse::<IpNet>().or_else(|_| single()) else {
            return Err(ValueError::new(
                format!("{text:?} is not a network"),
                "write an address and a prefix, such as 10.0.0.0/8, 192.0.2.7/32 or fd00::/8",
            ));
        };
        let network = written.trunc();
        if network != written {
            let (address, most) = (written.addr(), written.max_prefix_len());
            return Err(ValueError::new(
                format!("{text:?} has address bits beyond its prefix"),
                format!("write {network}, or {address}/{most} for that address alone"),
            ));
        }
        if let IpNet::V6(v6) = network
            && let Some(address) = v6.network().to_ipv4_mapped()
        {
            return Err(ValueError::new(
                format!("{text:?} is an IPv4 network, mapped into IPv6"),
                format!("write {address}/{}", v6.prefix_len().saturating_sub(96)),
            ));
        }
        Ok(Self(network))
    }

    /// Whether a client at this address is in the network. An IPv4 client on an IPv6 socket counts as IPv4.
    #[must_use]
    pub fn contains(&self, client: IpAddr) -> bool {
        self.0.contains(&client.to_canonical())
    }

    pub(super) fn covers(&self, other: &Self) -> bool {
        self.0.contains(&other.0)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(network: &str, inside: &[&str], outside: &[&str]) {
        let network = Network::read(network).unwrap();
        for address in inside {
            assert!(
                network.contains(address.parse().unwrap()),
                "{address} in {network}"
            );
        }
        for address in outside {
            assert!(
                !network.contains(address.parse().unwrap()),
                "{address} not in {network}"
            );
        }
    }

    #[test]
    fn clients_are_in_their_networks() {
        check(
            "10.0.0.0/8",
            &["10.0.0.0", "10.255.1.2", "::ffff:10.1.2.3"],
            &["11.0.0.0", "::1"],
        );
        check("192.0.2.7", &["192.0.2.7"], &["192.0.2.6"]);
        check("192.0.2.6/31", &["192.0.2.6", "192.0.2.7"], &["192.0.2.8"]);
        check("0.0.0.0/0", &["1.2.3.4"], &["::1", "::"]);
        check("::/0", &["::1"], &["1.2.3.4"]);
        check("fd00::/8", &["fd12::1"], &["fe80::1"]);
        check("::1/128", &["::1"], &["::2"]);
    }

    #[test]
    fn what_is_no_network_is_refused() {
        for text in [
            "",
            "10",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/8/8",
            "::1/129",
            "localhost",
            "10.0.0.*",
            "10.0.0.0/255.0.0.0",
            "10.0.0.0/ 8",
        ] {
            let ValueError { what, to_do } = Network::read(text).unwrap_err();
            assert!(what.contains("is not a network"), "{what}");
            assert!(to_do.contains("10.0.0.0/8"), "{to_do}");
        }
        let ValueError { to_do, .. } = Network::read("10.1.2.3/8").unwrap_err();
        assert_eq!(
            to_do,
            "write 10.0.0.0/8, or 10.1.2.3/32 for that address alone"
        );
        for (mapped, written) in [
            ("::ffff:10.0.0.0/104", "10.0.0.0/8"),
            ("::ffff:192.0.2.7", "192.0.2.7/32"),
        ] {
            let ValueError { to_do, .. } = Network::read(mapped).unwrap_err();
            assert_eq!(to_do, format!("write {written}"));
        }
    }

    #[test]
    fn wider_networks_cover_narrower_ones() {
        let network = |text| Network::read(text).unwrap();
        assert!(network("10.0.0.0/8").covers(&network("10.1.0.0/16")));
        assert!(network("10.0.0.0/8").covers(&network("10.0.0.0/8")));
        assert!(!network("10.1.0.0/16").covers(&network("10.0.0.0/8")));
        assert!(!network("0.0.0.0/0").covers(&network("::/0")));
    }
}
