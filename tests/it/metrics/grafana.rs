//! The dashboard for Grafana: Prometheus accepts each of its queries, and their metrics exist.

use pgpalisade_test_servers::machine::repository;
use pgpalisade_test_servers::postgres::scratch_dir;
use serde_json::{Value, json};

use super::{families, metrics_of_all_families, named, promtool};

/// Values that Grafana inserts for its variables.
const VARIABLES: [(&str, &str); 4] = [
    ("$__from", "1795432212999"),
    ("$__rate_interval", "5m"),
    ("$instance", "a|b"),
    ("$job", "pgpalisade"),
];

/// Labels added to each series by a scrape.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// Queries inside a value, in its order.
fn queries(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(values) => values.iter().flat_map(queries).collect(),
        Value::Object(fields) => {
            let own = fields.get("expr").and_then(Value::as_str);
            own.into_iter()
                .chain(fields.values().flat_map(queries))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// Labels that a query selects or groups by.
fn labels(query: &str) -> Vec<&str> {
    let inside = |opening: &'static str, closing: char| {
        let parts = query.split(opening).skip(1);
        parts.flat_map(move |part| part.split(closing).next().unwrap().split(','))
    };
    let labels = inside("{", '}').chain(inside(" by (", ')'));
    labels
        .map(|label| label.split(['=', '!']).next().unwrap().trim())
        .collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

#[test]
fn the_dashboard_asks_for_what_there_is() {
    let text = repository().join("packaging/grafana/pgpalisade.json");
    let text = std::fs::read_to_string(text).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let annotations = &dashboard["annotations"]["list"];
    for one in list(&dashboard["panels"]).iter().chain(list(annotations)) {
        assert!(!queries(one).is_empty(), "it shows nothing: {one:#}");
    }
    let seen = metrics_of_all_families();
    let families = families(&seen);
    // Also in the definitions of the variables.
    named(&text, &families);

    let rule = |(number, query): (usize, &str)| {
        let query = VARIABLES
            .iter()
            .fold(query.to_owned(), |query, (name, value)| {
                query.replace(name, value)
            });
        assert!(
            !query.contains('$'),
            "a variable that is not known: {query}"
        );
        assert!(named(&query, &families) > 0, "{query}");
        for label in labels(&query) {
            let is_known =
                OF_PROMETHEUS.contains(&label) || seen.text.contains(&format!("{label}=\""));
            assert!(is_known, "no metric has the label {label}: {query}");
        }
        json!({"record": format!("query:{number}"), "expr": query})
    };
    let rules: Vec<Value> = queries(&dashboard)
        .into_iter()
        .enumerate()
        .map(rule)
        .collect();
    // JSON is valid YAML.
    let rules = json!({"groups": [{"name": "dashboard", "rules": rules}]});
    let dir = scratch_dir();
    let file = dir.path().join("rules.yml");
    std::fs::write(&file, rules.to_string()).unwrap();
    promtool(&["check", "rules", &file.display().to_string()], "");
}
