//! One decoder layer: the body of the loop in MODEL.md section 2.

use super::forward::Pass;
use super::stage_output::StageOutput;
use super::{
    AttentionWeights, EngineError, LayerWeights, MlpWeights, NormSite, Operations, State,
    Workspace, dense, kda, mla, moe, residual,
};
use k3_core::stages::Stage;

/// Layer `pass.layer` on a chunk: `work.residual` holds the sum and the banks, in and out.
pub(super) fn forward<O: Operations + ?Sized>(
    pass: &Pass<'_, O>,
    weights: &LayerWeights,
    state: &mut State,
    work: &mut Workspace,
    stages: &mut StageOutput<'_>,
) -> Result<(), EngineError> {
    let (t, hidden) = (pass.tokens, pass.shape.hidden);
    let banks_here = pass.shape.layers[pass.layer].banks;
    let (attention_mixer, mlp_mixer) = (&weights.attention_mixer, &weights.mlp_mixer);
    let operations = pass.operations;

    // 1. h = mix(b, s), or s while there is no bank.
    if operations.attention_mixes(work.residual.filled) {
        let folded = operations.mixer(NormSite::AttentionMix, attention_mixer, mlp_mixer);
        let banks = work.residual.filled;
        residual::mix(pass, NormSite::AttentionMix, folded, banks, &mut work.residual);
    } else {
        residual::copy_running(t, &mut work.residual);
    }
    // 2. At n mod block = 0 the un-mixed s is banked and cleared.
    if banks_here {
        residual::bank(pass, &mut work.residual);
    }
    // 3. a = attention(RMSNorm(h)); s = a or s + a.
    residual::norm(pass, NormSite::Input, &weights.input_norm, &mut work.residual);
    stages.put(Stage::AttnMix, &[t, hidden], work.residual.mixed.first(t));
    stages.put(Stage::AttnNorm, &[t, hidden], work.residual.normed.first(t));
    match &weights.attention {
        AttentionWeights::Kda(kda) => kda::forward(pass, weights, kda, state, work, stages)?,
        AttentionWeights::Mla(mla) => mla::forward(pass, weights, mla, state, work, stages)?,
    }
    stages.put(Stage::AttnOut, &[t, hidden], work.residual.output.first(t));
    residual::add(pass, &mut work.residual);
    // 4. h = mix(b, s), always: there is a bank by now.
    if operations.mlp_mixes() {
        let folded = operations.mixer(NormSite::MlpMix, mlp_mixer, attention_mixer);
        let banks = operations.mlp_mix_banks(work.residual.filled, banks_here);
        residual::mix(pass, NormSite::MlpMix, folded, banks, &mut work.residual);
    } else {
        residual::copy_running(t, &mut work.residual);
    }
    // 5. m = mlp(RMSNorm(h)); s = s + m.
    residual::norm(pass, NormSite::PostAttention, &weights.post_attention_norm, &mut work.residual);
    stages.put(Stage::MlpMix, &[t, hidden], work.residual.mixed.first(t));
    stages.put(Stage::MlpNorm, &[t, hidden], work.residual.normed.first(t));
    match &weights.mlp {
        MlpWeights::Dense(weights) => {
            let out = work.residual.output.first_mut(t);
            let normed = work.residual.normed.first(t);
            dense::forward(pass, weights, normed, &mut work.mlp, out);
        }
        MlpWeights::Moe(weights) => moe::forward(pass, weights, work, stages)?,
    }
    stages.put(Stage::MlpOut, &[t, hidden], work.residual.output.first(t));
    residual::add(pass, &mut work.residual);
    stages.put(Stage::Out, &[t, hidden], work.residual.running.first(t));
    Ok(())
}
