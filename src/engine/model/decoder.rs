//! One decoder layer: the body of the loop in MODEL.md section 2.

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::{
    AttentionWeights, EngineError, LayerWeights, MlpWeights, State, Workspace, dense, kda, mla,
    moe, residual,
};
use k3_core::stages::Stage;

/// Layer `pass.layer` on a chunk: `work.residual` holds the sum and the banks, in and out.
pub(super) fn forward(
    pass: &Pass<'_>,
    weights: &LayerWeights,
    state: &mut State,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let (t, hidden) = (pass.tokens, pass.shape.hidden);
    let opens = pass.shape.layers[pass.layer].pushes_bank;

    // h = mix(banks, s, attention fold) if banks else s
    let stream = &mut work.residual;
    if stream.filled == 0 {
        stream.mixed.first_mut(t).copy_from_slice(stream.running.first(t));
    } else {
        residual::mix(pass, &weights.attention_mixer, stream);
    }
    // if opens: banks.append(s)
    if opens {
        stream.banks[stream.filled].first_mut(t).copy_from_slice(stream.running.first(t));
        stream.filled += 1;
    }
    // a = attention(RMSNorm(h; input_layernorm, ε)); s = a if opens else s + a
    residual::norm(pass, &weights.input_norm, &stream.mixed, &mut stream.normed);
    stages.put(Stage::AttnMix, &[t, hidden], stream.mixed.first(t));
    stages.put(Stage::AttnNorm, &[t, hidden], stream.normed.first(t));
    match &weights.attention {
        AttentionWeights::Kda(kda) => kda::forward(pass, weights, kda, state, work, stages)?,
        AttentionWeights::Mla(mla) => mla::forward(pass, weights, mla, state, work, stages)?,
    }
    let stream = &mut work.residual;
    stages.put(Stage::AttnOut, &[t, hidden], stream.output.first(t));
    if opens {
        stream.running.first_mut(t).copy_from_slice(stream.output.first(t));
    } else {
        (pass.kernels.add)(stream.running.first_mut(t), stream.output.first(t));
    }
    // h = mix(banks, s, MLP fold)
    residual::mix(pass, &weights.mlp_mixer, stream);
    // s = s + mlp(RMSNorm(h; post_attention_layernorm, ε))
    residual::norm(pass, &weights.post_attention_norm, &stream.mixed, &mut stream.normed);
    stages.put(Stage::MlpMix, &[t, hidden], stream.mixed.first(t));
    stages.put(Stage::MlpNorm, &[t, hidden], stream.normed.first(t));
    match &weights.mlp {
        MlpWeights::Dense(weights) => {
            let (x, out) = (stream.normed.first(t), stream.output.first_mut(t));
            dense::forward(pass, weights, x, &mut work.mlp, out);
        }
        MlpWeights::Moe(weights) => moe::forward(pass, weights, work, stages)?,
    }
    let stream = &mut work.residual;
    stages.put(Stage::MlpOut, &[t, hidden], stream.output.first(t));
    (pass.kernels.add)(stream.running.first_mut(t), stream.output.first(t));
    stages.put(Stage::Out, &[t, hidden], stream.running.first(t));
    Ok(())
}
