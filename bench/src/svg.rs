//! The few shapes that the plots are made of: <https://www.w3.org/TR/SVG11/>.
//!
//! A library for plots would be the heaviest dependency of this package, for less say in what it draws.

use std::fmt::{self, Write};

/// What of a text stands at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its beginning.
    Start,
    /// Its middle.
    Middle,
    /// Its end.
    End,
}

/// A picture on white, in pixels from the upper left.
#[derive(Debug)]
pub struct Svg(String);

impl Svg {
    /// An empty one.
    #[must_use]
    pub fn new(width: f64, height: f64) -> Self {
        let mut svg = Self(String::new());
        svg.shape(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>"
        ));
        svg
    }

    /// A text in one size.
    pub fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, size: u32, what: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let what = escaped(what);
        self.shape(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{what}</text>"
        ));
    }

    /// A thin line.
    pub fn line(&mut self, (x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) {
        self.shape(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
        ));
    }

    /// An element as it is: what comes from outside must be [`escaped`].
    pub fn shape(&mut self, element: fmt::Arguments<'_>) {
        // Writing to a String does not fail.
        let _ = writeln!(self.0, "{element}");
    }

    /// The whole file.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

/// A text as it may stand between tags.
#[must_use]
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_cannot_end_their_element() {
        let mut svg = Svg::new(10.0, 20.0);
        svg.text((1.0, 2.0), Anchor::End, 11, "a <b> & c");
        svg.line((0.0, 1.0), (2.0, 3.0), "#000000");
        let text = svg.finish();
        assert!(text.contains("viewBox=\"0 0 10 20\""), "{text}");
        assert!(
            text.contains("text-anchor=\"end\" font-size=\"11\">a &lt;b&gt; &amp; c</text>"),
            "{text}"
        );
        assert!(
            text.starts_with("<svg ") && text.ends_with("stroke=\"#000000\"/>\n</svg>\n"),
            "{text}"
        );
    }
}
