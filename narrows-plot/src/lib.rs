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
//! ```
//!
//! [`Plot`] has axes that are linear or logarithmic, lines, points, named marks and a legend; [`Strips`] shows what holds
//! from where to where, one strip above the other. [`page`] puts several under one heading, as a page of its own.

mod axis;
mod colour;
mod page;
mod plot;
mod strips;
mod svg;

pub use axis::Axis;
pub use colour::Colour;
pub use page::{Figure, page};
pub use plot::Plot;
pub use strips::Strips;
