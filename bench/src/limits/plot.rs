//! The plot of what must stay flat: CPU time of a statement over sessions and scopes.

use pgpalisade_bench::svg::{Anchor, Svg};

use crate::report::Report;

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 250.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;

/// Where 0 is on the axis of powers of ten.
const ZERO: f64 = -0.5;

/// Told apart also by those who see fewer colours: <https://jfly.uni-koeln.de/color/>.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// A line of the plot.
#[derive(Debug, Clone, PartialEq)]
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// One line for each series of the reports that has the figure at two numbers or more. `None` where there is no line.
pub(crate) fn svg(reports: &[Report], figure: &str) -> Option<String> {
    let lines: Vec<Line> = reports
        .iter()
        .flat_map(|report| lines(report, figure))
        .collect();
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let most_x = points()
        .map(|point| power(point.0))
        .reduce(f64::max)?
        .max(1.0);
    let most_y = points().map(|point| point.1).reduce(f64::max)?.max(1.0) * 1.15;
    let x = |value: f64| LEFT + (power(value) - ZERO) / (most_x - ZERO) * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| HEIGHT - BOTTOM - value / most_y * (HEIGHT - TOP - BOTTOM);
    let mut svg = Svg::new(WIDTH, HEIGHT);
    let title = format!("{figure}: does it stay flat?");
    svg.text((LEFT, 20.0), Anchor::Start, 14, &title);
    axes(&mut svg, most_x, most_y, x, y);
    for (line, (number, colour)) in lines.iter().zip(COLOURS.iter().cycle().enumerate()) {
        let path: Vec<String> = line
            .points
            .iter()
            .map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py)))
            .collect();
        let path = path.join(" ");
        svg.shape(format_args!(
            "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" points=\"{path}\"/>"
        ));
        for (px, py) in &line.points {
            let (px, py) = (x(*px), y(*py));
            svg.shape(format_args!(
                "<circle cx=\"{px:.1}\" cy=\"{py:.1}\" r=\"3\" fill=\"{colour}\"/>"
            ));
        }
        let (left, at) = (WIDTH - RIGHT + 20.0, TOP + 20.0 * number as f64);
        let top = at - 4.0;
        svg.shape(format_args!(
            "<rect x=\"{left}\" y=\"{top}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>"
        ));
        svg.text((left + 18.0, at + 2.0), Anchor::Start, 12, &line.name);
    }
    Some(svg.finish())
}

fn axes(svg: &mut Svg, most_x: f64, most_y: f64, x: impl Fn(f64) -> f64, y: impl Fn(f64) -> f64) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let powers = (0..=most_x.ceil() as i32).map(|power| 10_f64.powi(power));
    for value in [0.0]
        .into_iter()
        .chain(powers)
        .filter(|value| power(*value) <= most_x)
    {
        let below = (x(value), bottom + 18.0);
        svg.text(below, Anchor::Middle, 12, &value.to_string());
    }
    let step = (most_y / 5.0).ceil().max(1.0);
    for tick in (0..)
        .map(|tick| f64::from(tick) * step)
        .take_while(|tick| *tick <= most_y)
    {
        let at = y(tick);
        svg.line((LEFT, at), (right, at), "#dddddd");
        svg.text((LEFT - 8.0, at + 4.0), Anchor::End, 12, &tick.to_string());
    }
    let below = (f64::midpoint(LEFT, right), bottom + 38.0);
    svg.text(below, Anchor::Middle, 12, "idle sessions, or scopes");
}

fn lines(report: &Report, figure: &str) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for one in report.figures.iter().filter(|one| one.name == figure) {
        let (Some(value), Ok(x)) = (one.value, one.x.parse::<f64>()) else {
            continue;
        };
        let name = format!("{}, {}", report.over, one.series);
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push((x, value)),
            None => lines.push(Line {
                name,
                points: vec![(x, value)],
            }),
        }
    }
    lines.retain(|line| line.points.len() > 1);
    lines
}

fn power(value: f64) -> f64 {
    if value < 1.0 { ZERO } else { value.log10() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut report = Report::new("sessions", "idle", "x");
        for (x, cpu) in [("0", 10.0), ("1000", 11.0), ("5000", 12.0)] {
            report.figure(("a < b", x), "CPU", &[cpu], 1);
            report.figure(("a < b", x), "other", &[99.0], 1);
        }
        report.figure(("lonely", "1000"), "CPU", &[7.0], 1);
        report.figure(("words", "out"), "CPU", &[7.0], 1);
        report
    }

    #[test]
    fn lines_are_of_one_figure_over_numbers() {
        let expect = Line {
            name: "idle, a < b".to_owned(),
            points: vec![(0.0, 10.0), (1000.0, 11.0), (5000.0, 12.0)],
        };
        assert_eq!(lines(&report(), "CPU"), [expect]);
    }

    #[test]
    fn plots_are_whole() {
        let svg = svg(&[report()], "CPU").unwrap();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("a &lt; b") && !svg.contains("NaN"), "{svg}");
        for number in ["0", "10", "100", "1000"] {
            assert!(svg.contains(&format!(">{number}<")), "{number}: {svg}");
        }
        assert_eq!(super::svg(&[report()], "nothing"), None);
        assert_eq!(super::svg(&[], "CPU"), None);
    }
}
