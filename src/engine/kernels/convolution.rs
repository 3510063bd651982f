//! The depthwise causal convolution over time (K1, K2): f64 sum of the taps, oldest first.
//!
//! The history holds the last kernel−1 inputs, oldest first, zero before position 0. A prompt
//! shorter than the history shifts it; it never starts it anew.

/// out_c = f32(Σ_j taps\[c, j\] · window_j\[c\]) for one token. `window` holds the kernel inputs
/// oldest first, each \[channels\]; `taps` is \[channels, kernel\], oldest first.
#[inline(always)]
pub fn convolve(window: &[&[f32]], taps: &[f32], out: &mut [f32]) {
    let kernel = window.len();
    for (channel, (out, taps)) in out.iter_mut().zip(taps.chunks_exact(kernel)).enumerate() {
        let mut sum = 0.0_f64;
        for (tap, input) in taps.iter().zip(window) {
            sum += f64::from(*tap) * f64::from(input[channel]);
        }
        *out = sum as f32;
    }
}

/// Drops the oldest input and appends the newest. `history` is \[kernel−1, channels\].
pub fn shift_history(history: &mut [f32], newest: &[f32]) {
    let channels = newest.len();
    if history.is_empty() {
        return;
    }
    history.copy_within(channels.., 0);
    let last = history.len() - channels;
    history[last..].copy_from_slice(newest);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Taps read newest to oldest, or a history that is overwritten instead of shifted.
    #[test]
    fn a04_short_prompts_shift_the_history() {
        let taps = [1.0_f32, 10.0, 100.0, 1000.0];
        let mut history = vec![0.0_f32; 3];
        let mut outputs = Vec::new();
        for input in [1.0_f32, 2.0, 3.0, 4.0, 5.0] {
            let newest = [input];
            let mut window: Vec<&[f32]> = history.chunks_exact(1).collect();
            window.push(&newest);
            let mut out = [0.0];
            convolve(&window, &taps, &mut out);
            outputs.push(out[0]);
            shift_history(&mut history, &newest);
        }
        assert_eq!(outputs, [1000.0, 2100.0, 3210.0, 4321.0, 5432.0]);
        assert_eq!(history, [3.0, 4.0, 5.0]);
    }
}
