//! The alerts: each leads to a section of the runbooks.

use pgpalisade_test_servers::machine::repository;

use crate::page::{Page, broken_links};

#[test]
fn each_alert_leads_to_a_section() {
    let file = repository().join("packaging/prometheus-rules.yml");
    let rules = std::fs::read_to_string(file).expect("read the alerts");
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 5, "the alerts are read wrongly");
    for alert in alerts {
        // The package contains the pages of the repository.
        let (_, link) = alert
            .split_once("runbook_url: \"file:///usr/share/doc/pgpalisade/")
            .unwrap_or_else(|| panic!("no runbook_url: {alert}"));
        let (link, _) = link.split_once('"').expect("its end");
        assert!(link.contains('#'), "{alert}");
        let page = Page {
            name: "alerts".to_owned(),
            text: format!("[runbook]({link})"),
        };
        assert_eq!(broken_links(&page), Vec::<String>::new(), "{alert}");
    }
}
