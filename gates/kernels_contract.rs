//! The functions of the contract (A10) on a sample of all inputs: the committed error program at
//! a stride. The full run over 2^32 inputs is `cargo run --release --example exp_error`.

#[path = "../tools/exp_error.rs"]
#[allow(dead_code, reason = "its main is a program of its own")]
mod exp_error;

/// A shorter series, a wrong constant or a rounding too many makes the error leave 0.5 ULP.
#[test]
fn exp_sigmoid_and_tanh_stay_within_just_over_half_an_ulp() {
    for found in exp_error::measure(4099, 0, u32::MAX) {
        println!("{found:?}");
        assert!(found.worst_ulp < 0.5001, "{found:?}");
        assert!(found.inputs > 1_000_000 && found.nan_lost == 0, "{found:?}");
    }
}

/// The inputs where the full run found each function's worst error.
#[test]
fn the_worst_inputs_of_the_full_run_are_as_stated() {
    for (function, bits, ulp) in [
        ("exp", 0x4283_070F, 0.500_000_042),
        ("sigmoid", 0xB783_8000, 0.500_000_003),
        ("tanh", 0x3AC3_7DE2, 0.499_999_991),
    ] {
        let found = exp_error::measure(1, bits, bits);
        let found = found.iter().find(|found| found.name == function);
        let worst = found.map_or(f64::NAN, |found| found.worst_ulp);
        approx::assert_abs_diff_eq!(worst, ulp, epsilon = 1e-9);
    }
}
