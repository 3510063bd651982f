//! The gated MLP: down · SiTU(gate·x, up·x), for the dense layer and the shared experts.

use super::DenseWeights;
use super::forward::Pass;
use super::workspace::MlpBuffers;
use crate::kernels::products::Product;

/// The MLP of a chunk: `x` and `out` are \[T, E\].
pub(super) fn forward(
    pass: &Pass<'_>,
    weights: &DenseWeights,
    x: &[f32],
    buffers: &mut MlpBuffers,
    out: &mut [f32],
) {
    let n = pass.tokens * weights.gate.rows();
    let (gate, up) = (&mut buffers.gate[..n], &mut buffers.up[..n]);
    pass.products(vec![
        Product { matrix: weights.gate.view(), vectors: x, out: gate },
        Product { matrix: weights.up.view(), vectors: x, out: up },
    ]);
    let activated = &mut buffers.activated[..n];
    let (gate, up) = (&buffers.gate[..n], &buffers.up[..n]);
    pass.situ(gate, up, activated);
    pass.product(&weights.down, activated, out);
}
