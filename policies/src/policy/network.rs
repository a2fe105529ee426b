//! Networks of clients, in CIDR notation.

use std::fmt;
use std::net::IpAddr;

use super::remark::Fault;

/// A network: an address, and how many of its first bits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    address: IpAddr,
    bits: u8,
}

impl Network {
    /// Reads `10.0.0.0/8`, `fd00::/8`, or a single address.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, Fault> {
        let no_network = || {
            Fault::new(
                format!("{text:?} is not a network"),
                "write an address and a prefix, such as 10.0.0.0/8, 192.0.2.7/32 or fd00::/8",
            )
        };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| no_network())?;
        let most = width(address);
        let bits = match bits {
            None => most,
            // Neither sign nor empty.
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits
                .parse()
                .ok()
                .filter(|bits| *bits <= most)
                .ok_or_else(no_network)?,
            Some(_) => return Err(no_network()),
        };
        let network = Self {
            address: masked(address, bits),
            bits,
        };
        if network.address != address {
            let written = format!("{text:?} has bits of an address behind its prefix");
            return Err(Fault::new(
                written,
                format!("write {network}, or {address}/{most} for that address alone"),
            ));
        }
        Ok(network)
    }

    /// Whether a client at this address is in it. A client that came by IPv4 to a socket of IPv6 counts as IPv4.
    pub(super) fn contains(&self, client: IpAddr) -> bool {
        let client = client.to_canonical();
        client.is_ipv4() == self.address.is_ipv4() && masked(client, self.bits) == self.address
    }

    /// Whether it contains whatever the other does.
    pub(super) fn covers(&self, other: &Self) -> bool {
        self.bits <= other.bits && self.contains(other.address)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

const fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn masked(address: IpAddr, bits: u8) -> IpAddr {
    let rest = u32::from(width(address).saturating_sub(bits));
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V4((address.to_bits() & mask).into())
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
            IpAddr::V6((address.to_bits() & mask).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(network: &str, inside: &[&str], outside: &[&str]) {
        let network = Network::parse(network).unwrap();
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
            let Fault { what, to_do } = Network::parse(text).unwrap_err();
            assert!(what.contains("is not a network"), "{what}");
            assert!(to_do.contains("10.0.0.0/8"), "{to_do}");
        }
        let Fault { to_do, .. } = Network::parse("10.1.2.3/8").unwrap_err();
        assert_eq!(
            to_do,
            "write 10.0.0.0/8, or 10.1.2.3/32 for that address alone"
        );
    }

    #[test]
    fn wider_networks_cover_narrower_ones() {
        let network = |text| Network::parse(text).unwrap();
        assert!(network("10.0.0.0/8").covers(&network("10.1.0.0/16")));
        assert!(network("10.0.0.0/8").covers(&network("10.0.0.0/8")));
        assert!(!network("10.1.0.0/16").covers(&network("10.0.0.0/8")));
        assert!(!network("0.0.0.0/0").covers(&network("::/0")));
    }
}
