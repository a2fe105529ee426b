//! The plot: CPU time per transaction, as bars with whiskers.

use pgpalisade_bench::svg::{Anchor, Svg};
use pgpalisade_bench::targets::{Kind, Link};

use crate::plan::{Cell, Cores, Lane, Protocol, Workload};
use crate::results::Results;

/// Left of the first panel, for the numbers of its axis.
const LEFT: f64 = 64.0;
const TOP: f64 = 96.0;
const PANEL_WIDTH: f64 = 330.0;
const PANEL_HEIGHT: f64 = 200.0;
const GAP_X: f64 = 58.0;
const GAP_Y: f64 = 84.0;
const BOTTOM: f64 = 36.0;

/// Lines across a panel, besides the one at zero.
const GRID: u32 = 4;

/// What has a process, and its colour: ours are blue, and all can be told apart without seeing red and green.
const BARS: [(Kind, &str); 6] = [
    (Kind::Bound, "#0b4f9e"),
    (Kind::NoToken, "#4b8fd6"),
    (Kind::Observe, "#a9cbee"),
    (Kind::Pgbouncer, "#d98c00"),
    (Kind::Haproxy, "#8c5a9e"),
    (Kind::Relay, "#9a9a9a"),
];

/// The whole picture, one row of panels for each workload and link, one panel for each protocol.
pub(crate) fn plot(results: &Results) -> String {
    let rows: Vec<Row> = Workload::ALL
        .into_iter()
        .flat_map(|workload| Link::ALL.map(|link| Row::of(results, workload, link)))
        .filter(|row| !row.bars.is_empty())
        .collect();
    let protocols: Vec<Protocol> = Protocol::ALL
        .into_iter()
        .filter(|protocol| {
            let mut bars = rows.iter().flat_map(|row| &row.bars);
            bars.any(|bar| bar.cell.protocol == *protocol)
        })
        .collect();
    let columns = protocols.len().max(2) as f64;
    let width = LEFT + columns * (PANEL_WIDTH + GAP_X);
    let height = TOP + rows.len() as f64 * (PANEL_HEIGHT + GAP_Y) + BOTTOM;
    let mut svg = Svg::new(width, height);
    let title = "CPU time of the proxy per transaction, in microseconds";
    svg.text((LEFT, 26.0), Anchor::Start, 17, title);
    legend(&mut svg, &rows);
    for (row, y) in rows.iter().zip(0..) {
        let top = TOP + 30.0 + f64::from(y) * (PANEL_HEIGHT + GAP_Y);
        svg.text((LEFT, top - 30.0), Anchor::Start, 14, &row.title());
        for (protocol, x) in protocols.iter().zip(0..) {
            let left = LEFT + f64::from(x) * (PANEL_WIDTH + GAP_X);
            panel(&mut svg, row, *protocol, left, top);
        }
    }
    let about = format!(
        "medians of the rounds, whiskers from the least to the most, those of one client on all cores cut off; {}, {} \
         cores, {}",
        results.note("cpu").unwrap_or("unknown processor"),
        results.note("cores").unwrap_or("?"),
        results.note("date").unwrap_or("undated"),
    );
    svg.text((LEFT, height - 14.0), Anchor::Start, 12, &about);
    svg.finish()
}

struct Bar {
    cell: Cell,
    kind: Kind,
    micros: f64,
    range: (f64, f64),
}

/// The panels of one workload over one link. They share their scale.
struct Row {
    workload: Workload,
    link: Link,
    bars: Vec<Bar>,
    most: f64,
}

impl Row {
    fn of(results: &Results, workload: Workload, link: Link) -> Self {
        let mut bars = Vec::new();
        let cells = results.cells().into_iter();
        for cell in cells.filter(|cell| cell.workload == workload) {
            bars.extend(BARS.iter().filter_map(|&(kind, _)| {
                let summary = results.summary(cell, Lane { kind, link })?;
                Some(Bar {
                    cell,
                    kind,
                    micros: summary.micros?,
                    range: summary.micros_range?,
                })
            }));
        }
        Self {
            workload,
            link,
            most: scale_end(most(&bars)),
            bars,
        }
    }

    fn title(&self) -> String {
        let workload = match self.workload {
            Workload::Select => "pgbench -S, one SELECT by primary key",
            Workload::Tpcb => "pgbench like TPC-B, seven statements",
        };
        let link = match self.link {
            Link::Tcp => "PostgreSQL over TCP",
            Link::Unix => "PostgreSQL over a unix socket",
        };
        format!("{workload}; {link}")
    }
}

/// The most of all bars but those of one client on all cores: it costs what the host takes for waking a core, many
/// times what is to be compared, and everything else would be too small to see.
fn most(bars: &[Bar]) -> f64 {
    let is_cut = |bar: &&Bar| (bar.cell.clients, bar.cell.cores) == (1, Cores::All);
    let most_of = |bars: &mut dyn Iterator<Item = &Bar>| {
        let ends = bars.map(|bar| bar.range.1);
        ends.reduce(f64::max)
    };
    most_of(&mut bars.iter().filter(|bar| !is_cut(bar)))
        .or_else(|| most_of(&mut bars.iter()))
        .unwrap_or_default()
}

/// A round number that is not below.
fn scale_end(most: f64) -> f64 {
    let decade = 10_f64.powf(most.max(1.0).log10().floor());
    let steps = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0];
    let fits = steps
        .iter()
        .map(|step| step * decade)
        .find(|end| *end >= most);
    fits.unwrap_or(10.0 * decade)
}

fn panel(svg: &mut Svg, row: &Row, protocol: Protocol, left: f64, top: f64) {
    let bottom = top + PANEL_HEIGHT;
    // What does not fit is cut.
    let y = |micros: f64| bottom - micros.min(row.most) / row.most * PANEL_HEIGHT;
    let above = (left + PANEL_WIDTH / 2.0, top - 8.0);
    svg.text(above, Anchor::Middle, 12, protocol.name());
    for step in 0..=GRID {
        let value = row.most * f64::from(step) / f64::from(GRID);
        let at = y(value);
        svg.line((left, at), (left + PANEL_WIDTH, at), "#dddddd");
        svg.text((left - 6.0, at + 4.0), Anchor::End, 11, &value.to_string());
    }
    let in_panel: Vec<&Bar> = row
        .bars
        .iter()
        .filter(|bar| bar.cell.protocol == protocol)
        .collect();
    let mut cells: Vec<Cell> = in_panel.iter().map(|bar| bar.cell).collect();
    cells.dedup();
    let group = PANEL_WIDTH / cells.len().max(1) as f64;
    for (cell, place) in cells.iter().zip(0..) {
        let start = left + f64::from(place) * group;
        let bars = in_panel.iter().filter(|bar| bar.cell == *cell);
        let width = (group * 0.86) / BARS.len() as f64;
        for (bar, slot) in bars.zip(0..) {
            let x = start + group * 0.07 + f64::from(slot) * width;
            draw(svg, bar, x, width, &y);
        }
        let below = (start + group / 2.0, bottom + 16.0);
        let label = match cell.cores {
            Cores::All => cell.crowd(),
            // There is no room for more.
            Cores::One => format!("{}, one core", cell.clients),
        };
        svg.text(below, Anchor::Middle, 11, &label);
    }
}

fn draw(svg: &mut Svg, bar: &Bar, x: f64, width: f64, y: &impl Fn(f64) -> f64) {
    let (top, bottom) = (y(bar.micros), y(0.0));
    let (least, most) = bar.range;
    svg.shape(format_args!(
        "<rect x=\"{x:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"><title>{}, {}: {:.1} us \
         ({least:.1} to {most:.1})</title></rect>",
        width - 1.0,
        bottom - top,
        colour(bar.kind),
        bar.kind,
        bar.cell,
        bar.micros,
    ));
    let middle = x + (width - 1.0) / 2.0;
    svg.line((middle, y(least)), (middle, y(most)), "#222222");
}

fn colour(kind: Kind) -> &'static str {
    let bar = BARS.iter().find(|(known, _)| *known == kind);
    bar.map_or("#000000", |(_, colour)| colour)
}

fn legend(svg: &mut Svg, rows: &[Row]) {
    let mut x = LEFT;
    for (kind, colour) in BARS {
        if !rows
            .iter()
            .flat_map(|row| &row.bars)
            .any(|bar| bar.kind == kind)
        {
            continue;
        }
        svg.shape(format_args!(
            "<rect x=\"{x:.1}\" y=\"42\" width=\"14\" height=\"14\" fill=\"{colour}\"/>"
        ));
        let label = label(kind);
        svg.text((x + 20.0, 54.0), Anchor::Start, 12, label);
        x += 40.0 + 6.6 * label.len() as f64;
    }
}

fn label(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "direct",
        Kind::Bound => "pgpalisade, token",
        Kind::NoToken => "pgpalisade, no token",
        Kind::Observe => "pgpalisade, observe",
        Kind::Pgbouncer => "pgbouncer",
        Kind::Haproxy => "haproxy",
        Kind::Relay => "bare relay",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::tests::{CELL, sample};

    #[test]
    fn ends_of_scales() {
        for (most, end) in [
            (0.0, 1.0),
            (9.9, 10.0),
            (10.0, 10.0),
            (17.0, 20.0),
            (31.0, 40.0),
            (86.0, 100.0),
        ] {
            assert_eq!(scale_end(most), end, "{most}");
        }
    }

    #[test]
    fn a_bar_for_each_lane_that_has_a_process() {
        let samples = vec![
            sample(CELL, Lane::tcp(Kind::Direct), 1, 1000, 0),
            sample(CELL, Lane::tcp(Kind::Bound), 1, 1000, 20),
            sample(CELL, Lane::unix(Kind::Bound), 1, 1000, 12),
            sample(CELL, Lane::tcp(Kind::Relay), 1, 1000, 10),
        ];
        let notes = vec![("cpu".to_owned(), "A & B <2>".to_owned())];
        let svg = plot(&Results { notes, samples });
        assert!(svg.contains("A &amp; B &lt;2&gt;"), "{svg}");
        assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
        // As high as the scale, 20, and half of that.
        for height in ["height=\"200.0\"", "height=\"100.0\""] {
            assert!(svg.contains(height), "{height}: {svg}");
        }
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }

    /// The host's price of waking a core says nothing of a proxy, and hides what does.
    #[test]
    fn one_client_on_all_cores_does_not_set_the_scale() {
        let cell = |clients, cores| Cell {
            clients,
            cores,
            ..CELL
        };
        let bound = |cell, micros| sample(cell, Lane::tcp(Kind::Bound), 1, 1000, micros);
        let lone = bound(cell(1, Cores::All), 300);
        let plot_of = |samples| {
            plot(&Results {
                notes: Vec::new(),
                samples,
            })
        };
        let others = [bound(cell(1, Cores::One), 40), bound(CELL, 20)];
        let svg = plot_of(vec![lone, others[0], others[1]]);
        // The scale is 40, and the first bar is cut there.
        assert_eq!(svg.matches("height=\"200.0\"").count(), 2, "{svg}");
        assert_eq!(svg.matches("height=\"100.0\"").count(), 1, "{svg}");
        // Alone, it is drawn as it is: 300 of 400.
        assert!(plot_of(vec![lone]).contains("height=\"150.0\""));
    }
}
