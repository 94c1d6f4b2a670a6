//! Colours that can be told apart on white and on black, also by people who see fewer of them.

/// What a colour is for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Colour {
    /// What the picture is about.
    Main,
    /// What it is compared with.
    Muted,
    /// The limit that nothing passes; its lines are dashed.
    Limit,
    /// The n-th of things that have no order.
    Other(usize),
    /// A place from 0 to 1 in an order.
    Scale(f64),
}

/// From the palette of Okabe and Ito: safe for the colour-blind, of middle lightness.
const OTHERS: [&str; 5] = ["#d55e00", "#0072b2", "#cc79a7", "#e69f00", "#56b4e9"];
/// Light to dark and yellow to violet, so that the order shows in grey too; the middle of viridis, which is even.
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
            Self::Scale(at) => {
                let at = if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 } * (SCALE.len() - 1) as f64;
                let low = (at as usize).min(SCALE.len() - 2);
                let share = at - low as f64;
                let part = |i: usize| (SCALE[low][i] * (1.0 - share) + SCALE[low + 1][i] * share).round() as u8;
                format!("#{:02x}{:02x}{:02x}", part(0), part(1), part(2))
            }
        }
    }

    pub(crate) fn dash(self) -> &'static str {
        if self == Self::Limit { " stroke-dasharray=\"5 4\"" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_where_it_should_and_takes_anything() {
        assert_eq!(Colour::Scale(0.0).css(), "#dedc5a");
        assert_eq!(Colour::Scale(1.0).css(), "#5c1e6e");
        assert_eq!(Colour::Scale(f64::NAN).css(), Colour::Scale(-1.0).css());
        assert_eq!(Colour::Other(5).css(), Colour::Other(0).css());
    }
}
