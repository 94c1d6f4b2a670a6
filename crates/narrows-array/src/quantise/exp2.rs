//! Powers of two by basic operations alone, so that every machine decodes the same values.

/// ln(2)^k / k!, from k = 13 down to 0: below 2^-56 off for exponents from -1/2 to 1/2.
const COEFFICIENTS: [f64; 14] = [
    1.3691488853904128e-12,
    2.5678435993488206e-11,
    4.4455382718708116e-10,
    7.054911620801123e-09,
    1.01780860092397e-07,
    1.321548679014431e-06,
    1.5252733804059841e-05,
    0.0001540353039338161,
    0.0013333558146428443,
    0.009618129107628477,
    0.05550410866482158,
    0.24022650695910072,
    std::f64::consts::LN_2,
    1.0,
];

/// Adding and subtracting this rounds to an integer, ties to even, below 2^51.
pub(crate) const ROUNDER: f64 = 6_755_399_441_055_744.0;

/// 2^v within some units of the last place; 0 or infinity outside the normal numbers.
#[inline]
pub(crate) fn exp2(v: f64) -> f64 {
    if !(-1022.0..1023.0).contains(&v) {
        return if v < 0.0 { 0.0 } else { f64::INFINITY };
    }
    let whole = (v + ROUNDER) - ROUNDER;
    let fraction = v - whole;
    let p = COEFFICIENTS.iter().fold(0.0, |sum, c| sum * fraction + c);
    p * f64::from_bits(((whole as i64 + 1023) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_are_within_a_few_units_of_the_last_place() {
        for i in -100_000..100_000 {
            let v = f64::from(i) * 0.010_17;
            let exact = v.exp2();
            assert!((exp2(v) - exact).abs() <= exact * 1e-15, "{v}");
        }
        assert_eq!((exp2(0.0), exp2(10.0), exp2(-3.0)), (1.0, 1024.0, 0.125));
    }
}
