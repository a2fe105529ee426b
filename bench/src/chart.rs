//! Chart: CPU time of a transaction, a panel for each number of clients, a bar for each target.

use std::error::Error;
use std::ops::Range;
use std::path::Path;

use pgpalisade_fence::readable::counted;
use pgpalisade_load::median;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::record::{ComparedTarget, Figure, Measurement, Record};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

const SIZE: (u32, u32) = (1080, 400);
const FONT: &str = "sans-serif";

const BARS: [(ComparedTarget, RGBColor); 4] = [
    (ComparedTarget::Pgpalisade, RGBColor(38, 105, 171)),
    (ComparedTarget::Pgbouncer, RGBColor(226, 134, 43)),
    (ComparedTarget::Haproxy, RGBColor(120, 160, 90)),
    (ComparedTarget::Relay, RGBColor(150, 150, 150)),
];

/// A protocol's width is 1.
const BAR_WIDTH: f64 = 0.2;

pub(crate) fn draw(path: &Path, records: &[Record]) -> Result<(), Box<dyn Error>> {
    let records: Vec<&Record> = records
        .iter()
        .filter(|record| {
            record.measurement == Measurement::Transactions && record.figure == Figure::Cpu
        })
        .collect();
    let clients = distinct(records.iter().map(|record| record.number));
    let protocols = distinct(records.iter().map(|record| record.variant.as_str()));
    if clients.is_empty() {
        return Ok(());
    }
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let title =
        "CPU time of the proxy's process for one transaction of pgbench -S, in microseconds";
    let panels = root
        .titled(title, (FONT, 18))?
        .split_evenly((1, clients.len()));
    for (panel, clients) in panels.iter().zip(clients) {
        let of_panel = records
            .iter()
            .filter(|record| record.number == clients)
            .copied();
        draw_panel(panel, clients, &protocols, &of_panel.collect::<Vec<_>>())?;
    }
    root.present()?;
    Ok(())
}

fn draw_panel(
    area: &Area<'_>,
    clients: u32,
    protocols: &[&str],
    records: &[&Record],
) -> Result<(), Box<dyn Error>> {
    let value = |target: ComparedTarget, protocol: &str| {
        let values = records
            .iter()
            .filter(|record| record.target == target && record.variant == protocol);
        median(&values.map(|record| record.value).collect::<Vec<_>>())
    };
    let most = records
        .iter()
        .map(|record| record.value)
        .fold(1.0, f64::max);
    let across: Range<f64> = -0.5..protocols.len() as f64 - 0.5;
    let mut chart = ChartBuilder::on(area)
        .caption(counted(clients, "client"), (FONT, 15))
        .margin(10)
        .x_label_area_size(30)
        .y_label_area_size(40)
        .build_cartesian_2d(across, 0.0..most * 1.3)?;
    let protocol = |x: &f64| {
        let at = protocols
            .get(x.round() as usize)
            .filter(|_| (x - x.round()).abs() < 0.01);
        at.map_or_else(String::new, |name| (*name).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(protocols.len())
        .x_label_formatter(&protocol)
        .label_style((FONT, 12))
        .draw()?;
    for (index, (target, colour)) in BARS.into_iter().enumerate() {
        let left = (index as f64 - BARS.len() as f64 / 2.0) * BAR_WIDTH;
        let bars = protocols
            .iter()
            .enumerate()
            .filter_map(|(place, protocol)| {
                let from = place as f64 + left;
                let corners = [
                    (from, 0.0),
                    (from + BAR_WIDTH * 0.9, value(target, protocol)?),
                ];
                Some(Rectangle::new(corners, colour.filled()))
            });
        chart
            .draw_series(bars)?
            .label(target.name())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 10, y + 5)], colour.filled()));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .label_font((FONT, 12))
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

fn distinct<T: PartialEq>(items: impl Iterator<Item = T>) -> Vec<T> {
    items.fold(Vec::new(), |mut all, item| {
        if !all.contains(&item) {
            all.push(item);
        }
        all
    })
}
