//! Methods of a site where nothing was measured.

use narrows::codec::Method as Codec;
use narrows::monitor::cost::Prior;
use narrows_host::calibration;
use narrows_plan::interval::Interval;
use narrows_plan::method::Method;
use narrows_plan::site::default_methods;

/// Spread of a speed from the calibration, which is measured on one kind of data.
const CALIBRATED_SPREAD: f64 = 0.25;

/// Methods where nothing was measured or typed, and where their figures come from.
pub fn without_data() -> (Vec<Method>, String) {
    let mut methods = default_methods();
    let Some(stored) = calibration::load(false) else {
        let words = "defaults, means over 14 kinds of data on another host: name a PATH to measure your own";
        return (methods, words.into());
    };
    for m in &mut methods {
        let Ok(codec) = m.name.parse::<Codec>() else { continue };
        if !stored.rows().iter().any(|r| r.0 == codec) {
            continue;
        }
        let Some((encode, decode)) = Prior::shipped().reference(codec) else { continue };
        let shift = stored.shift(codec);
        // Logarithms of seconds per byte.
        let speed = |log_s: f32| {
            let mb_per_s = 1e-6 / f64::from(log_s).exp();
            Interval::new(mb_per_s * (1.0 - CALIBRATED_SPREAD), mb_per_s, mb_per_s * (1.0 + CALIBRATED_SPREAD))
        };
        (m.encode_mb_per_s, m.decode_mb_per_s) = (speed(encode + shift.0), speed(decode + shift.1));
    }
    let words = "defaults, ratios of 14 kinds of data with the speeds of this host's calibration where it has them: \
                 name a PATH to measure your own";
    (methods, words.into())
}
