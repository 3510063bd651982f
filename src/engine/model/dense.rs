//! The gated MLP: down · SiTU(gate·x, up·x), for the dense layer and the shared experts.

use super::forward::Pass;
use super::workspace::MlpBuffers;
use super::{DenseWeights, Operations};
use crate::kernels::products::Product;

/// The MLP of a chunk: `x` and `out` are \[T, E\].
pub(super) fn forward<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &DenseWeights,
    x: &[f32],
    buffers: &mut MlpBuffers,
    out: &mut [f32],
) {
    let n = pass.tokens * weights.gate.rows();
    let (gate, up) = (&mut buffers.gate[..n], &mut buffers.up[..n]);
    let products = vec![
        Product { matrix: weights.gate.view(), vectors: x, out: gate },
        Product { matrix: weights.up.view(), vectors: x, out: up },
    ];
    pass.operations.products(pass.threads, products);
    let activated = &mut buffers.activated[..n];
    pass.operations.situ(&buffers.gate[..n], &buffers.up[..n], pass.shape.caps, activated);
    let product = Product { matrix: weights.down.view(), vectors: activated, out };
    pass.operations.products(pass.threads, vec![product]);
}
