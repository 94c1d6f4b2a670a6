//! Plots as self-contained SVG: no scripts, no embedded fonts, readable in light and dark.
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
//! [`Plot`] has linear, logarithmic or categorical axes, lines, points, bars, intervals, named
//! marks and a legend; [`Heat`] is a heat map; [`Raster`] a field of many numbers; [`Strips`] is a timeline with one strip above the
//! other. [`page`] puts several pictures into one HTML page; other pages can use [`PAGE_STYLE`] and
//! [`escape`].

mod axis;
mod colour;
mod frame;
mod heat;
mod marks;
mod page;
mod plot;
mod png;
mod raster;
mod strips;
mod svg;

pub use axis::Axis;
pub use colour::Colour;
pub use heat::Heat;
pub use page::{Figure, PAGE_STYLE, page};
pub use plot::Plot;
pub use raster::Raster;
pub use strips::Strips;
pub use svg::escape;
