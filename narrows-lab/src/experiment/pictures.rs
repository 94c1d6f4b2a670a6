//! The pictures that a plan asks for, from its figures.

use std::collections::BTreeMap;

use super::plan::{Picture, Plan, Shape};
use super::plot::{self, Frame, Series};
use super::summary::{Figures, short};
use crate::units::parse_len;

pub(crate) struct Drawn {
    /// Of the file.
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

/// The plan's words, and what was averaged to make one point.
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
    let frame = Frame {
        title,
        x_label: picture.x_label.as_deref().unwrap_or(&picture.x),
        y_label: &picture.y_label,
        x_names: numbers.is_none().then_some(&columns),
        log_x: picture.log_x && numbers.is_some(),
        log_y: picture.log_y,
        level: picture.level,
    };
    if picture.form == Shape::Heat {
        return Some(plot::heat(&frame, &columns, &rows, |c, r| Some(value(&columns[c], &rows[r])?.0)));
    }
    let place = |i: usize| match (&numbers, picture.form) {
        (Some(numbers), Shape::Lines) => numbers[i],
        _ => i as f64,
    };
    let series: Vec<Series> = rows
        .iter()
        .map(|row| {
            let points = columns.iter().enumerate();
            let points =
                points.filter_map(|(i, c)| value(c, row).map(|(y, interval)| (place(i), y, interval))).collect();
            let name = if row.is_empty() { picture.value.clone() } else { row.clone() };
            Series { name, points }
        })
        .filter(|s: &Series| !s.points.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    Some(match picture.form {
        Shape::Bars => plot::bars(&frame, &columns, &series),
        _ => plot::lines(&frame, &series),
    })
}

/// Series within runs, one line for each cell; of a single cell the caption says what it is.
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
            let points: Vec<_> = x.iter().zip(y).map(|(x, y)| (*x, *y, None)).collect();
            let of = picture.series.as_ref().map(|axis| cell.get(axis).to_owned());
            let name = match (of, names.len()) {
                (Some(of), 1) => of,
                (Some(of), _) => format!("{of}: {name}"),
                (None, _) if figures.runs.len() == 1 => (*name).to_owned(),
                (None, _) => format!("{name}, {}", cell.name(plan)),
            };
            series.push(Series { name, points });
        }
    }
    let frame = Frame {
        title,
        x_label: picture.x_label.as_deref().unwrap_or(&picture.x),
        y_label: &picture.y_label,
        x_names: None,
        log_x: picture.log_x,
        log_y: picture.log_y,
        level: picture.level,
    };
    (!series.is_empty()).then(|| plot::lines(&frame, &series))
}

/// Numbers, and lengths such as `64K`.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().or_else(|| parse_len(text).ok().map(|n| n as f64))
}

/// Columns of the side-by-side table.
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
        assert_eq!(drawn[0].svg.matches("<polyline").count(), 2);
        // Ground, legend, bars.
        assert_eq!(drawn[1].svg.matches("<rect").count(), 1 + 2 + 4);
        assert!(drawn[2].svg.contains("48.00"));
    }
}
