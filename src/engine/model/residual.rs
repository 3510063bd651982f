//! The attention-residual stream: mixes over banks and running sum (R1…R7), norms of the mix.

use super::forward::Pass;
use super::workspace::{ResidualBuffers, Rows};
use super::{Mixer, Norm};

/// h = mix(b, s) for every token of the chunk, from all banks pushed so far; writes `mixed`. The
/// sources are the banks in order, then the running sum.
pub(super) fn mix(pass: &Pass<'_>, mixer: &Mixer, stream: &mut ResidualBuffers) {
    let weights = (mixer.folded.as_slice(), mixer.epsilon);
    let (running, banks) = (&stream.running, &stream.banks[..stream.filled]);
    let rows = stream.mixed.first_mut(pass.tokens).chunks_exact_mut(pass.shape.hidden);
    pass.threads.for_each(rows.enumerate().collect(), &|(token, out): (usize, &mut [f32])| {
        let banks = banks.iter().map(|bank| bank.row(token));
        let sources: Vec<&[f32]> = banks.chain([running.row(token)]).collect();
        (pass.kernels.residual_mix)(&pass.kernels, &sources, weights, out);
    });
}

/// RMSNorm of every row of the chunk.
pub(super) fn norm(pass: &Pass<'_>, norm: &Norm, x: &Rows, out: &mut Rows) {
    let rows = out.first_mut(pass.tokens).chunks_exact_mut(pass.shape.hidden);
    pass.threads.for_each(rows.enumerate().collect(), &|(token, out): (usize, &mut [f32])| {
        norm.apply(&pass.kernels, x.row(token), out);
    });
}
