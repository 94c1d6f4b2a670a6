//! The page of `--html`: fields, errors and spectra of variables.

use narrows_plot::{Axis, Colour, Figure, Plot, Raster, page};

use super::{Findings, Row, Verdict, show};
use crate::{Plane, Side, Store, Variable, plane, spectrum};

/// Variables with pictures: a page with more is too long to be looked at.
const VARIABLES_MAX: usize = 64;
/// Points of a line that a picture can show.
const POINTS_MAX: usize = 1500;

/// The page.
pub(super) fn html(all: &Findings<'_>) -> String {
    let Findings { file, store, rows, .. } = all;
    let text = show::plain(all);
    let shown = rows.iter().filter(|row| row.variable.element.is_numeric() && row.variable.raw_bytes() > 0);
    let mut shown: Vec<_> = shown.collect();
    // What Narrows wrote, then what was compared, comes before the rest.
    shown.sort_by_key(|row| (!row.variable.is_narrows(), row.against.is_none()));
    let mut figures = Vec::new();
    for row in shown.into_iter().take(VARIABLES_MAX) {
        figures.extend(of_variable(store, row));
    }
    let words = match (all.verdict(), rows.iter().any(|row| row.against.is_some())) {
        (Verdict::Good, true) => {
            "All chunks of Narrows are whole, and all that was compared is within what the chunks state."
        }
        (Verdict::Good, false) => "All chunks of Narrows are whole.",
        (Verdict::Unseen, _) => "Nothing is known to be damaged, but not all was looked at: see the lines below.",
        (Verdict::Bad, _) => "Something is damaged or beyond its bound: see the lines below.",
    };
    page(&format!("narrows check {file}"), words, &text, &figures)
}

fn of_variable(store: &Store, row: &Row<'_>) -> Vec<Figure> {
    let name = show::name(row.variable);
    let Some(ours) = read(store, row.variable) else { return Vec::new() };
    let theirs = row.against.as_ref().and_then(|against| {
        let Side { store, variable } = against.original()?;
        read(store, variable).filter(|p| (p.rows, p.columns) == (ours.rows, ours.columns))
    });
    let mut out = vec![field(name, row.variable, &ours, theirs.as_ref())];
    if let Some(theirs) = &theirs {
        out.extend(error_map(name, row, &ours, theirs));
    }
    out.extend(spectra(name, &ours, theirs.as_ref()));
    out
}

/// The plane of a variable, if it can be read; what cannot is said in the table.
fn read(store: &Store, variable: &Variable) -> Option<Plane> {
    plane(store, variable).ok().flatten().filter(|p| p.values.iter().any(|v| v.is_finite()) && p.columns > 1)
}

/// Where a plane is, in words: `[12, :, :]`.
fn place(variable: &Variable, plane: &Plane) -> String {
    let rank = variable.shape.len();
    let axes = plane.origin.iter().enumerate().map(|(i, from)| {
        let len = match rank - i {
            1 => plane.columns as u64,
            2 => plane.rows as u64,
            _ => return from.to_string(),
        };
        if len == variable.shape[i] { ":".into() } else { format!("{from}:{}", from + len) }
    });
    format!("[{}]", axes.collect::<Vec<_>>().join(", "))
}

fn points(values: &[f64]) -> Vec<(f64, f64)> {
    let step = values.len().div_ceil(POINTS_MAX).max(1);
    // Of joined points the first is shown: their mean would hide the noise.
    values.iter().enumerate().step_by(step).filter(|p| p.1.is_finite()).map(|(i, v)| (i as f64, *v)).collect()
}

fn field(name: &str, variable: &Variable, ours: &Plane, theirs: Option<&Plane>) -> Figure {
    let at = place(variable, ours);
    let svg = if ours.rows > 1 {
        Raster::new(&format!("{name}{at}"), ours.columns, &ours.values).svg()
    } else {
        let mut plot = Plot::new(&format!("{name}{at}"), Axis::linear("Index"), Axis::linear("Value"));
        if let Some(theirs) = theirs {
            plot = plot.line("original", Colour::Muted, &points(&theirs.values));
        }
        plot.line("stored", Colour::Main, &points(&ours.values)).svg()
    };
    let caption = format!(
        "{name}: the field as stored, {} by {}, the first row at the top; fill values, NaN and 1e19 and more beside smaller numbers are left empty.",
        ours.rows, ours.columns
    );
    Figure { svg, caption }
}

fn error_map(name: &str, row: &Row<'_>, ours: &Plane, theirs: &Plane) -> Option<Figure> {
    let errors: Vec<f64> = ours.values.iter().zip(&theirs.values).map(|(y, x)| y - x).collect();
    let worst = errors.iter().filter(|e| e.is_finite()).fold(0.0, |w: f64, e| w.max(e.abs()));
    if worst == 0.0 {
        return None;
    }
    let bound = row.found.abs.map(|abs| abs.high);
    let limit = bound.unwrap_or(worst).max(worst);
    let title = format!("{name}: stored - original");
    let svg = if ours.rows > 1 {
        Raster::new(&title, ours.columns, &errors).around_zero(limit).svg()
    } else {
        let mut plot = Plot::new(&title, Axis::linear("Index"), Axis::linear("Error"));
        for at in bound.into_iter().flat_map(|b| [b, -b]) {
            plot = plot.line("", Colour::Limit, &[(0.0, at), ((errors.len() - 1) as f64, at)]);
        }
        plot.points("error", Colour::Main, &points(&errors)).svg()
    };
    let stated = bound.map_or(String::new(), |b| format!(" The bound is {}.", show::number(b)));
    let caption = format!(
        "{name}: the error, worst here {}.{stated} Structure in it, such as edges of the field or of chunks, is what to look for; \
         where several values share a cell, it shows the worst of them.",
        show::number(worst)
    );
    Some(Figure { svg, caption })
}

fn spectra(name: &str, ours: &Plane, theirs: Option<&Plane>) -> Option<Figure> {
    let after = spectrum(&ours.values, ours.columns);
    if after.iter().all(|p| p.1 <= 0.0) {
        return None;
    }
    let title = format!("{name}: power along the last axis");
    let mut plot = Plot::new(&title, Axis::log("Frequency, cycles per element"), Axis::log("Power spectral density"));
    let mut caption = format!("{name}: power spectral density, the mean over rows without gaps (Welch, Hann windows).");
    if let Some(theirs) = theirs {
        let errors: Vec<f64> = ours.values.iter().zip(&theirs.values).map(|(y, x)| y - x).collect();
        let before = spectrum(&theirs.values, theirs.columns);
        let noise = spectrum(&errors, ours.columns);
        plot = plot.line("original", Colour::Other(0), &before).line("error", Colour::Limit, &noise);
        caption += " Where the line of the original cannot be seen, that of what is stored covers it. Scales at which the error \
                    comes near the original are lost.";
    }
    Some(Figure { svg: plot.line("stored", Colour::Main, &after).svg(), caption })
}
