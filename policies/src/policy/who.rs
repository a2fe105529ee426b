//! Sessions to which a rule applies.

use super::glob::Glob;
use super::network::Network;
use super::session::Who;

/// Conditions on a session. An empty list sets none; of several entries, one must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WhoPattern {
    pub(super) user: Vec<Glob>,
    pub(super) database: Vec<Glob>,
    pub(super) application_name: Vec<Glob>,
    pub(super) common_name: Vec<Glob>,
    pub(super) network: Vec<Network>,
}

impl WhoPattern {
    pub(super) fn matches(&self, who: &Who<'_>) -> bool {
        // PostgreSQL also treats a missing application_name as empty.
        let application_name = who.application_name.unwrap_or_default();
        one_matches(&self.user, who.user)
            && one_matches(&self.database, who.database)
            && one_matches(&self.application_name, application_name)
            && (self.common_name.is_empty()
                || who
                    .common_name
                    .is_some_and(|name| one_matches(&self.common_name, name)))
            && (self.network.is_empty()
                || who.client.is_some_and(|client| {
                    let mut networks = self.network.iter();
                    networks.any(|network| network.contains(client))
                }))
    }

    /// Whether it surely matches everything that the other does. Not detected if only several rules together do.
    pub(super) fn covers(&self, other: &Self) -> bool {
        all_covered(&self.user, &other.user, Glob::covers)
            && all_covered(&self.database, &other.database, Glob::covers)
            && all_covered(
                &self.application_name,
                &other.application_name,
                Glob::covers,
            )
            && all_covered(&self.common_name, &other.common_name, Glob::covers)
            && all_covered(&self.network, &other.network, Network::covers)
    }
}

fn one_matches(globs: &[Glob], name: &str) -> bool {
    globs.is_empty() || globs.iter().any(|glob| glob.matches(name))
}

fn all_covered<T>(by: &[T], patterns: &[T], covers: impl Fn(&T, &T) -> bool) -> bool {
    let covered = |pattern: &T| by.iter().any(|one| covers(one, pattern));
    by.is_empty() || (!patterns.is_empty() && patterns.iter().all(covered))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn pattern(user: &[&str], application_name: &[&str], network: &[&str]) -> WhoPattern {
        let globs = |texts: &[&str]| texts.iter().map(|text| Glob::new(text)).collect();
        let networks = network.iter().map(|text| Network::read(text).unwrap());
        WhoPattern {
            user: globs(user),
            application_name: globs(application_name),
            network: networks.collect(),
            ..WhoPattern::default()
        }
    }

    #[test]
    fn what_is_said_must_match_and_what_is_not_said_does() {
        let who = |application_name: Option<&'static str>, client: Option<&str>| Who {
            user: "app",
            database: "shop",
            application_name,
            common_name: None,
            client: client.map(|text| text.parse::<IpAddr>().unwrap()),
        };
        let here = Some("10.1.2.3");
        let any = who(None, None);
        assert!(pattern(&["app"], &[], &[]).matches(&any));
        assert!(pattern(&["x", "a*"], &[], &[]).matches(&any));
        assert!(!pattern(&["x", "y"], &[], &[]).matches(&any));
        assert!(!pattern(&["app"], &["cron"], &[]).matches(&any));
        assert!(pattern(&[], &["cron*"], &[]).matches(&who(Some("cron-1"), None)));
        assert!(pattern(&[], &["*"], &[]).matches(&any), "none is empty");
        assert!(pattern(&[], &[], &["10.0.0.0/8"]).matches(&who(None, here)));
        assert!(
            !pattern(&[], &[], &["10.0.0.0/8"]).matches(&any),
            "a unix socket"
        );
        assert!(!pattern(&["app"], &[], &["11.0.0.0/8"]).matches(&who(None, here)));
        let database = WhoPattern {
            database: vec![Glob::new("shop")],
            ..WhoPattern::default()
        };
        assert!(database.matches(&any));
    }

    #[test]
    fn a_common_name_is_that_of_a_certificate() {
        let pattern = |texts: &[&str]| WhoPattern {
            common_name: texts.iter().map(|text| Glob::new(text)).collect(),
            ..WhoPattern::default()
        };
        let matches = |texts: &[&str], common_name| {
            pattern(texts).matches(&Who {
                user: "app",
                database: "shop",
                application_name: None,
                common_name,
                client: None,
            })
        };
        assert!(matches(&[], None) && matches(&[], Some("app")));
        assert!(matches(&["x", "a*"], Some("app")) && !matches(&["x"], Some("app")));
        // `*` accepts any certificate, but requires one.
        assert!(matches(&["*"], Some("app")) && !matches(&["*"], None));
        assert!(!matches(&["app"], None));
        assert!(pattern(&[]).covers(&pattern(&["*"])));
        assert!(pattern(&["*"]).covers(&pattern(&["a"])));
        assert!(!pattern(&["*"]).covers(&pattern(&[])));
    }

    #[test]
    fn a_rule_covers_what_is_narrower() {
        let wide = pattern(&["app*"], &[], &[]);
        assert!(wide.covers(&pattern(&["app1", "app*2"], &[], &["10.0.0.0/8"])));
        assert!(!wide.covers(&pattern(&["app1", "x"], &[], &[])));
        assert!(!wide.covers(&pattern(&[], &["x"], &[])), "any user");
        assert!(!pattern(&["a"], &["x"], &[]).covers(&pattern(&["a"], &[], &[])));
    }
}
