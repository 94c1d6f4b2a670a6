//! The pictures that a plan asks for, from its figures.

use std::collections::BTreeMap;

use narrows_plot::{Axis, Colour, Heat, Plot};

use super::plan::{Picture, Plan, Shape};
use super::summary::{Figures, short};
use crate::units::parse_len;

pub(crate) struct Drawn {
    /// Name of the file.
    pub(crate) name: String,
    pub(crate) svg: String,
    pub(crate) caption: String,
}

pub(crate) fn draw(plan: &Plan, figures: &Figures) -> Vec<Drawn> {
    let mut drawn = Vec::new();
    for (i, picture) in plan.picture.iter().enumerate() {
        let panels = picture
            .panel
            .as_ref()
            .map_or(vec![None], |axis| shown(plan, picture, axis).into_iter().map(Some).collect());
        for panel in panels {
            let mut only = picture.only();
            let mut title = plan.title.clone();
            let mut name = format!("{}", i + 1);
            if let (Some(axis), Some(value)) = (&picture.panel, &panel) {
                only.insert(axis.clone(), vec![value.clone()]);
                title = format!("{title}: {axis} {value}");
                name = format!("{name}-{}", value.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-"));
            }
            let svg = match picture.form {
                Shape::Time => time(plan, picture, figures, &only, &title),
                _ => of_cells(plan, picture, figures, &only, &title),
            };
            drawn.extend(svg.map(|svg| Drawn {
                name: format!("{name}.svg"),
                svg,
                caption: caption(plan, picture, figures, &only),
            }));
        }
    }
    drawn
}

/// The values of an axis that the picture shows, in the plan's order.
fn shown(plan: &Plan, picture: &Picture, axis: &str) -> Vec<String> {
    let only = picture.only();
    plan.axis(axis).into_iter().filter(|v| only.get(axis).is_none_or(|list| list.contains(v))).collect()
}

/// The plan's caption, and how points were averaged.
fn caption(plan: &Plan, picture: &Picture, figures: &Figures, only: &BTreeMap<String, Vec<String>>) -> String {
    let used: Vec<&String> = picture.series.iter().chain(&picture.panel).chain([&picture.x]).collect();
    let axes = plan.kind.kind().axes().iter().map(|a| a.name);
    let over: Vec<_> = axes
        .filter(|a| !used.iter().any(|u| u == a) && only.get(*a).map_or(plan.axis(a).len(), Vec::len) > 1)
        .collect();
    let mut text = picture.caption.clone();
    if !over.is_empty() && picture.form != Shape::Time {
        text.push_str(&format!(
            " Each point is the {} over {} of the medians of cells.",
            picture.take.word(),
            over.join(", ")
        ));
    } else if plan.rounds > 1 && matches!(picture.form, Shape::Lines | Shape::Bars) {
        text.push_str(" Medians of rounds; upright lines are 95 % BCa intervals of the mean.");
    }
    if figures.missing > 0 {
        text.push_str(" Not complete: runs are missing.");
    }
    text
}

fn of_cells(
    plan: &Plan,
    picture: &Picture,
    figures: &Figures,
    only: &BTreeMap<String, Vec<String>>,
    title: &str,
) -> Option<String> {
    let columns = shown(plan, picture, &picture.x);
    let rows = picture.series.as_ref().map_or(vec![String::new()], |axis| shown(plan, picture, axis));
    let value = |column: &str, row: &str| {
        let mut at = only.clone();
        at.insert(picture.x.clone(), vec![column.to_owned()]);
        if let Some(axis) = &picture.series {
            at.insert(axis.clone(), vec![row.to_owned()]);
        }
        let median = figures.take(&picture.value, &at, picture.take)?;
        let mut of = figures.cells.iter().filter(|(c, _)| c.lies_in(&at)).filter_map(|(_, v)| v.get(&picture.value));
        let first = of.next()?;
        let interval = (of.next().is_none() && first.n > 2).then_some((first.low, first.high));
        Some((median, interval))
    };
    let numbers: Option<Vec<f64>> = columns.iter().map(|c| number(c)).collect();
    if picture.form == Shape::Heat {
        let mut heat = Heat::new(title, x_label(picture), &columns, &picture.y_label);
        if let Some(level) = picture.level {
            heat = heat.middle(level);
        }
        for row in &rows {
            let values: Vec<_> = columns.iter().map(|c| value(c, row).map(|v| v.0)).collect();
            heat = heat.row(row, &values);
        }
        return Some(heat.svg());
    }
    let series: Vec<Series> = rows
        .iter()
        .map(|row| {
            let points = columns.iter().enumerate();
            let numbers = numbers.as_ref().filter(|_| picture.form == Shape::Lines);
            let place = |i: usize| numbers.map_or(i as f64, |n| n[i]);
            let points = points.filter_map(|(i, c)| value(c, row).map(|(y, ends)| ((place(i), y), ends)));
            let (points, ends) = points.unzip();
            Series { name: row.clone(), points, ends }
        })
        .filter(|s: &Series| !s.points.is_empty())
        .collect();
    let x = match (picture.form, numbers.is_some()) {
        (Shape::Lines, true) => number_axis(x_label(picture), picture.log_x),
        // Show files without their folder.
        _ => Axis::names(x_label(picture), &columns.iter().map(|c| file(c)).collect::<Vec<_>>()),
    };
    plot(picture, title, x, &series)
}

/// A line, or one bar of each group. The name is empty if it is the only one. `ends` are the ends
/// of the intervals of y, if any.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
    ends: Vec<Option<(f64, f64)>>,
}

/// A series with more points is drawn only as a line.
const POINTS_MAX: usize = 40;

fn plot(picture: &Picture, title: &str, x: Axis, series: &[Series]) -> Option<String> {
    if series.is_empty() {
        return None;
    }
    // Linear axes start at 0.
    let y = if picture.log_y { Axis::log(&picture.y_label) } else { Axis::linear(&picture.y_label).with(0.0, 0.0) };
    let mut plot = Plot::new(title, x, y);
    if let Some(level) = picture.level {
        plot = plot.level(level);
    }
    let mut others = 0;
    for s in series {
        let colour = match s.name.as_str() {
            // The empty name is a single series, which the y axis names.
            "" | "balance" | "narrows" => Colour::Main,
            "plain" | "nc" => Colour::Muted,
            _ => Colour::Other(others),
        };
        others += usize::from(matches!(colour, Colour::Other(_)));
        if picture.form == Shape::Bars {
            plot = plot.bars(&s.name, colour, &s.points).whiskers(&s.ends);
            continue;
        }
        plot = plot.line(&s.name, colour, &s.points).whiskers(&s.ends);
        if s.points.len() <= POINTS_MAX {
            plot = plot.points("", colour, &s.points);
        }
    }
    Some(plot.svg())
}

fn number_axis(name: &str, is_log: bool) -> Axis {
    if is_log { Axis::log(name) } else { Axis::linear(name) }
}

fn x_label(picture: &Picture) -> &str {
    picture.x_label.as_deref().unwrap_or(&picture.x)
}

fn file(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Draws series within runs, one line for each cell; a single cell is described by the caption.
fn time(
    plan: &Plan,
    picture: &Picture,
    figures: &Figures,
    only: &BTreeMap<String, Vec<String>>,
    title: &str,
) -> Option<String> {
    let names: Vec<&str> = picture.value.split(',').map(str::trim).collect();
    let mut series = Vec::new();
    for (cell, values) in figures.runs.iter().filter(|(c, _)| c.lies_in(only)) {
        let Some(x) = values.series.get(&picture.x) else { continue };
        for name in &names {
            let Some(y) = values.series.get(*name) else { continue };
            let points: Vec<_> = x.iter().zip(y).map(|(x, y)| (*x, *y)).collect();
            let of = picture.series.as_ref().map(|axis| cell.get(axis).to_owned());
            let name = match (of, names.len()) {
                (Some(of), 1) => of,
                (Some(of), _) => format!("{of}: {name}"),
                (None, _) if figures.runs.len() == 1 => (*name).to_owned(),
                (None, _) => format!("{name}, {}", cell.name(plan)),
            };
            series.push(Series { name, points, ends: Vec::new() });
        }
    }
    plot(picture, title, number_axis(x_label(picture), picture.log_x), &series)
}

/// Parses a number or a length such as `64K`.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().or_else(|| parse_len(text).ok().map(|n| n as f64))
}

/// Our value in the table beside published ones.
pub(crate) fn ours(value: Option<f64>) -> String {
    value.map_or("-".into(), short)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::cells::cells;
    use crate::experiment::plan::tests::SMALL;
    use crate::experiment::samples::{Sample, Values};

    #[test]
    fn every_form_is_well_formed_and_shows_its_numbers() {
        let mut text = SMALL.to_owned();
        for form in ["lines", "bars", "heat"] {
            text += &format!(
                "[[picture]]\nform = \"{form}\"\nx = \"cores\"\nseries = \"method\"\nvalue = \"speed\"\ny_label = \"a < b\"\ncaption = \"c\"\n"
            );
        }
        text += "[[picture]]\nform = \"time\"\nx = \"second\"\nvalue = \"queue\"\npanel = \"method\"\ny_label = \"q\"\ncaption = \"c\"\n";
        let plan = Plan::parse("p", &text, false).unwrap();
        let cells = cells(&plan);
        let sample = |cell: &super::super::cells::Cell| {
            let mut values = Values::of(&[("speed", 2.0 * cell.number("cores"))]);
            values.series.insert("second".into(), vec![0.0, 1.0]);
            values.series.insert("queue".into(), vec![3.0, 4.0]);
            Sample { cell: cell.clone(), round: 0, outcome: Ok(values) }
        };
        let samples: Vec<_> = cells.iter().map(sample).collect();
        let drawn = draw(&plan, &Figures::of(&plan, &cells, &samples));
        assert_eq!(drawn.len(), 5, "one for each form, and two panels");
        for picture in &drawn {
            let svg = &picture.svg;
            assert!(
                svg.starts_with("<svg") && svg.ends_with("</svg>\n") && !svg.contains("NaN") && !svg.contains("inf"),
                "{svg}"
            );
            assert!(!svg.contains("a < b"), "escaped");
            for element in ["text", "title"] {
                assert_eq!(svg.matches(&format!("<{element}")).count(), svg.matches(&format!("</{element}>")).count());
            }
        }
        assert_eq!(drawn[0].svg.matches("fill=\"none\" stroke=").count(), 2, "lines");
        // Background, legend, bars.
        assert_eq!(drawn[1].svg.matches("<rect").count(), 1 + 2 + 4);
        assert!(drawn[2].svg.contains(">48.0<"));
    }
}
