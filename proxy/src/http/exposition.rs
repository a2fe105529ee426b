//! The text format of every scraper, version 0.0.4: <https://prometheus.io/docs/instrumenting/exposition_formats/>.
//! The library writes OpenMetrics, in which a counter's family has another name than its samples.

pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn classic(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len());
    let mut help = "";
    for line in open_metrics.split_terminator('\n') {
        if let Some(text) = line.strip_prefix("# HELP ") {
            help = text.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|text| text.split_once(' '))
        {
            let suffix = if kind == "counter" { "_total" } else { "" };
            out.push_str(&format!(
                "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n"
            ));
        } else if !line.starts_with("# ") {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn counters_are_named_as_their_samples_and_hostile_labels_stay_one_line() {
        let mut registry = Registry::with_prefix("p");
        let hostile = "a\"} 1\n# TYPE evil gauge\nevil 1\\";
        let family = Family::<[(&str, &str); 1], Counter>::default();
        family.get_or_create(&[("name", hostile)]).inc();
        registry.register_with_unit("served", "What was served", Unit::Bytes, family);
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        assert_eq!(
            classic(&text),
            "# HELP p_served_bytes_total What was served.\n\
             # TYPE p_served_bytes_total counter\n\
             p_served_bytes_total{name=\"a\\\"} 1\\n# TYPE evil gauge\\nevil 1\\\\\"} 1\n"
        );
    }
}
