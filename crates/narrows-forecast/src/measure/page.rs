//! The figures as an HTML page: the tables, the copies as bars, and both directions over time.

use narrows_copy::measure::Series;
use narrows_plot::{Axis, Colour, Figure, Plot, page};

use super::predict::Prediction;
use super::show::{self, Measured};

/// Pieces of a direction in the picture.
const PIECES: usize = 60;

/// The HTML page.
pub fn html(m: &Measured) -> String {
    let mut figures: Vec<Figure> = m.prediction.iter().map(copies).collect();
    figures.push(link(m));
    page("What Narrows gives between two hosts", &show::headline(m), &show::text(m), &figures)
}

fn copies(p: &Prediction) -> Figure {
    let names: Vec<&str> = p.ways.iter().map(|w| w.name).collect();
    let points: Vec<(f64, f64)> = p.ways.iter().enumerate().map(|(i, w)| (i as f64, w.seconds.value)).collect();
    let ends: Vec<_> = p.ways.iter().map(|w| Some((w.seconds.low, w.seconds.high))).collect();
    let plot = Plot::new("Time of the copy", Axis::names("", &names), Axis::linear("Seconds"));
    Figure {
        svg: plot.bars("predicted", Colour::Main, &points).whiskers(&ends).svg(),
        caption: "The folder, copied in several ways. The lines are meant to hold 80 % of copies. `best` is what full knowledge \
                  of the data would reach."
            .into(),
    }
}

fn link(m: &Measured) -> Figure {
    let (up, down) = (&m.found.up, &m.found.down);
    let plot = Plot::new("The link while it was measured", Axis::linear("Seconds"), Axis::linear("Mbit/s"))
        .line("there", Colour::Main, &rates(&up.series))
        .line("back", Colour::Other(0), &rates(&down.series))
        .level(up.rate.bytes_per_s * 8e-6);
    Figure {
        svg: plot.svg(),
        caption: "Bytes that arrived, each direction from its own beginning. The dashed line is the rate that the prediction \
                  counts with; it leaves out the beginning, in which a window opens and shapers let a burst through."
            .into(),
    }
}

/// Rates in Mbit/s over pieces of the time.
fn rates(series: &Series) -> Vec<(f64, f64)> {
    let points = series.points();
    let step = points.len().div_ceil(PIECES).max(1);
    let ends: Vec<(f64, f64)> = points.iter().copied().step_by(step).collect();
    let rate = |pair: &[(f64, f64)]| {
        let (seconds, bytes) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
        (seconds > 0.0).then(|| (pair[1].0, bytes * 8e-6 / seconds))
    };
    ends.windows(2).filter_map(rate).collect()
}
