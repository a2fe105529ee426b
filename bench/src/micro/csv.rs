//! Figures in a file, for `--compare` and for plots.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::Error;
use crate::timing::Times;

const HEAD: &str = "case,instructions,ns,ns_min,ns_max";

/// A line of it. What was not measured is empty.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) instructions: Option<f64>,
    pub(crate) times: Option<Times>,
}

pub(crate) fn write(path: &Path, rows: &[Row]) -> Result<(), Error> {
    let figure =
        |figure: Option<f64>| figure.map_or_else(String::new, |figure| format!("{figure:.1}"));
    let mut text = format!("{HEAD}\n");
    for row in rows {
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "{},{},{},{},{}",
            row.case,
            figure(row.instructions),
            figure(row.times.map(|times| times.median)),
            figure(row.times.map(|times| times.least)),
            figure(row.times.map(|times| times.most)),
        );
    }
    fs::write(path, text).map_err(|error| Error::File(path.to_owned(), error.to_string()))
}

/// The instructions of a file that [`write`] has made; times of another day are not for comparing.
pub(crate) fn read(path: &Path) -> Result<Vec<Row>, Error> {
    let failed = |why: String| Error::File(path.to_owned(), why);
    let text = fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return Err(failed(format!("its first line is not {HEAD:?}")));
    }
    let row = |line: &str| {
        let mut fields = line.split(',');
        let case = fields.next()?.to_owned();
        let instructions = match fields.next()? {
            "" => None,
            figure => Some(figure.parse().ok()?),
        };
        Some(Row {
            case,
            instructions,
            times: None,
        })
    };
    lines
        .map(|line| row(line).ok_or_else(|| failed(format!("this line is none of it: {line:?}"))))
        .collect()
}
