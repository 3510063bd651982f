//! The attention-residual stream: banks, running sum, and the mixes over them (R1…R7).

use super::forward::Pass;
use super::workspace::ResidualBuffers;
use super::{NormSite, Operations};

/// h = mix(b, s) for every token of the chunk, from the first `banks` banks; writes `mixed`.
pub(super) fn mix<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    site: NormSite,
    folded: &[f32],
    banks: usize,
    buffers: &mut ResidualBuffers,
) {
    let width = pass.shape.hidden;
    let epsilon = pass.epsilon(site);
    let (running, all_banks) = (&buffers.running, &buffers.banks[..banks]);
    let rows = buffers.mixed.first_mut(pass.tokens).chunks_exact_mut(width);
    pass.threads.for_each(rows.enumerate().collect(), &|(token, out): (usize, &mut [f32])| {
        let banks: Vec<&[f32]> = all_banks.iter().map(|bank| bank.row(token)).collect();
        let sources = pass.operations.mix_sources(&banks, running.row(token));
        let mut keys = vec![0.0; width];
        pass.operations.residual_mix(&sources, folded, epsilon, &mut keys, out);
    });
}

/// h = s, while there is no bank.
pub(super) fn copy_running(tokens: usize, buffers: &mut ResidualBuffers) {
    buffers.mixed.first_mut(tokens).copy_from_slice(buffers.running.first(tokens));
}

/// R5: pushes the un-mixed s onto the banks and clears s.
pub(super) fn bank<O: Operations + ?Sized>(pass: &Pass<'_, O>, buffers: &mut ResidualBuffers) {
    let (running, mixed) = (buffers.running.first(pass.tokens), buffers.mixed.first(pass.tokens));
    let banked = pass.operations.banked(running, mixed);
    buffers.banks[buffers.filled].first_mut(pass.tokens).copy_from_slice(banked);
    buffers.filled += 1;
    buffers.cleared = pass.operations.clears_after_banking();
}

/// s += output, or s = output after a clearing (R6).
pub(super) fn add<O: Operations + ?Sized>(pass: &Pass<'_, O>, buffers: &mut ResidualBuffers) {
    let (running, output) = (&mut buffers.running, buffers.output.first(pass.tokens));
    if std::mem::take(&mut buffers.cleared) {
        running.first_mut(pass.tokens).copy_from_slice(output);
    } else {
        pass.operations.add(running.first_mut(pass.tokens), output);
    }
}

/// RMSNorm of every row of `mixed` into `normed`.
pub(super) fn norm<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    site: NormSite,
    weight: &[f32],
    buffers: &mut ResidualBuffers,
) {
    let (width, epsilon) = (pass.shape.hidden, pass.epsilon(site));
    let mixed = &buffers.mixed;
    let rows = buffers.normed.first_mut(pass.tokens).chunks_exact_mut(width);
    pass.threads.for_each(rows.enumerate().collect(), &|(token, out): (usize, &mut [f32])| {
        pass.operations.rms_norm(mixed.row(token), weight, epsilon, out);
    });
}
