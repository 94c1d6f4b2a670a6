//! Colours that can be told apart on white and on black, also by colour-blind readers.

/// A colour by its role in the picture.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Colour {
    /// The subject of the picture.
    Main,
    /// The baseline that it is compared with.
    Muted,
    /// One of an ordered set of baselines, from 0 to 1.
    Grey(f64),
    /// A theoretical limit; its lines are dashed.
    Limit,
    /// The n-th of an unordered set.
    Other(usize),
    /// One of an ordered set, from 0 to 1.
    Scale(f64),
}

/// The palette of Okabe and Ito, which is safe for the colour-blind and of medium lightness,
/// without its green, which is `Main`. Then further colours of that kind, for pictures with many
/// series.
const OTHERS: [&str; 10] =
    ["#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7fbf", "#b04040", "#7a9a2e", "#c9a58a"];
/// Ends of the grey scale; both are visible on white and on black.
const GREYS: [[f64; 3]; 2] = [[203.0, 207.0, 212.0], [88.0, 94.0, 101.0]];
/// Colour below the middle of a heat map. It and `ABOVE` differ in more than the amount of red,
/// which some people do not see.
const BELOW: &str = "#2b6cb8";
const ABOVE: &str = "#d73027";
/// Opacity of the strongest heat colour, low enough that text on it is readable.
const OPACITY_MAX: f64 = 0.62;
/// Light to dark and yellow to violet, so that the order is also visible in grey: the middle of
/// viridis, which is perceptually uniform.
const SCALE: [[f64; 3]; 6] = [
    [222.0, 220.0, 90.0],
    [122.0, 200.0, 90.0],
    [44.0, 170.0, 125.0],
    [40.0, 125.0, 142.0],
    [62.0, 80.0, 140.0],
    [92.0, 30.0, 110.0],
];

impl Colour {
    pub(crate) fn css(self) -> String {
        match self {
            Self::Main => "#0a8f7d".into(),
            Self::Muted | Self::Limit => "#8a8f96".into(),
            Self::Other(n) => OTHERS[n % OTHERS.len()].into(),
            Self::Grey(at) => between(&GREYS, at),
            Self::Scale(at) => between(&SCALE, at),
        }
    }

    pub(crate) fn dash(self) -> &'static str {
        if self == Self::Limit { " stroke-dasharray=\"5 4\"" } else { "" }
    }
}

/// Colour of the ordered scale as red, green, blue, opacity.
pub(crate) fn scale_rgba(share: f64) -> [u8; 4] {
    let [r, g, b] = mixed(&SCALE, share);
    [r, g, b, 255]
}

/// Colour of [`heat`] as red, green, blue, opacity.
pub(crate) fn heat_rgba(share: f64) -> [u8; 4] {
    let share = if share.is_finite() { share.clamp(-1.0, 1.0) } else { 0.0 };
    let css = if share < 0.0 { BELOW } else { ABOVE };
    let part = |i: usize| u8::from_str_radix(&css[i..i + 2], 16).unwrap_or(0);
    [part(1), part(3), part(5), (share.abs() * 255.0).round() as u8]
}

fn mixed(colours: &[[f64; 3]], at: f64) -> [u8; 3] {
    let at = if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 } * (colours.len() - 1) as f64;
    let low = (at as usize).min(colours.len() - 2);
    let share = at - low as f64;
    [0, 1, 2].map(|i| (colours[low][i] * (1.0 - share) + colours[low + 1][i] * share).round() as u8)
}

fn between(colours: &[[f64; 3]], at: f64) -> String {
    let [r, g, b] = mixed(colours, at);
    format!("#{r:02x}{g:02x}{b:02x}")
}

/// Colour of a heat map's cell, from -1 over 0 (transparent) to 1. It is translucent, so that it
/// works on light and dark backgrounds.
pub(crate) fn heat(share: f64) -> String {
    let share = if share.is_finite() { share.clamp(-1.0, 1.0) } else { 0.0 };
    format!("fill=\"{}\" fill-opacity=\"{:.3}\"", if share < 0.0 { BELOW } else { ABOVE }, share.abs() * OPACITY_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_where_it_should_and_takes_anything() {
        assert_eq!(Colour::Scale(0.0).css(), "#dedc5a");
        assert_eq!(Colour::Scale(1.0).css(), "#5c1e6e");
        assert_eq!(Colour::Scale(f64::NAN).css(), Colour::Scale(-1.0).css());
        assert_eq!((Colour::Grey(0.0).css(), Colour::Grey(1.0).css()), ("#cbcfd4".into(), "#585e65".into()));
        assert_eq!(Colour::Other(OTHERS.len()).css(), Colour::Other(0).css());
        assert_eq!(heat(-7.0), heat(-1.0));
        assert!(heat(f64::NAN).ends_with("\"0.000\""));
    }
}
