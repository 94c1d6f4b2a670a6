//! Plots as SVG that need nothing else: no scripts, no fonts of their own, readable in light and dark.
//!
//! ```
//! use narrows_plot::{Axis, Colour, Plot};
//!
//! let svg = Plot::new("Goodput against link rate", Axis::log("Link rate, Mbit/s"), Axis::log("Goodput, Mbit/s"))
//!     .line("plain", Colour::Muted, &[(1.0, 1.0), (10.0, 10.0), (100.0, 100.0)])
//!     .line("narrows", Colour::Main, &[(1.0, 4.0), (10.0, 35.0), (100.0, 210.0)])
//!     .mark("xz", Colour::Other(0), (2.0, 9.0))
//!     .svg();
//! assert!(svg.starts_with("<svg "));
//!
//! let links = Axis::names("Link", &["10 Mbit/s", "100 Mbit/s"]);
//! let svg = Plot::new("Times plain", links, Axis::linear("Goodput / goodput of plain"))
//!     .level(1.0)
//!     .bars("zstd 1", Colour::Grey(0.0), &[(0.0, 3.2), (1.0, 3.1)])
//!     .bars("narrows", Colour::Main, &[(0.0, 3.9), (1.0, 3.5)])
//!     .whiskers(&[Some((3.8, 4.1)), Some((3.4, 3.6))])
//!     .svg();
//! assert!(svg.contains("3.90"));
//! ```
//!
//! [`Plot`] has axes that are linear, logarithmic or of names, lines, points, bars, intervals, named marks and a legend;
//! [`Heat`] has a value for each pair of things; [`Strips`] shows what holds from where to where, one strip above the other.
//! [`page`] puts several under one heading, as a page of its own; other pages begin with [`PAGE_STYLE`] and [`escape`].

mod axis;
mod colour;
mod frame;
mod heat;
mod marks;
mod page;
mod plot;
mod strips;
mod svg;

pub use axis::Axis;
pub use colour::Colour;
pub use heat::Heat;
pub use page::{Figure, PAGE_STYLE, page};
pub use plot::Plot;
pub use strips::Strips;
pub use svg::escape;
