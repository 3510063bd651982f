//! Sites in what is loaded and in what a call is given.

use std::ops::Range;
use std::sync::Arc;

use super::{Delta, Place, Site};
use crate::mutants::Loaded;
use k3_engine::kernels::matrix::{Matrix, MatrixRef};
use k3_engine::kernels::rows::{self, Row};
use k3_engine::model::{
    AttentionWeights, EngineError, KdaWeights, LayerWeights, MlaWeights, MlpWeights, MoeWeights,
    Norm, VocabularySource,
};

type Change = fn(Delta, &mut Loaded);

/// The sites of this file.
pub(super) fn list() -> Vec<Site> {
    let site = |(id, clause, what, change): (_, _, _, Change)| Site {
        id,
        clause,
        what,
        place: Place::Loaded(change),
    };
    let lines = epsilons().into_iter().chain(weights()).chain(mlp_weights());
    let mut sites: Vec<Site> = lines.map(site).collect();
    let head = Place::Logits;
    sites.insert(0, Site { id: "l3-head", clause: "L3", what: "the logits", place: head });
    sites.extend([
        Site {
            id: "k13-state",
            clause: "K13",
            what: "the recurrent state carried into a call",
            place: Place::Carried(|delta, state| {
                state.kda.iter_mut().for_each(|slot| delta.all(&mut slot.recurrent));
            }),
        },
        Site {
            id: "k13-history",
            clause: "K13",
            what: "the convolution inputs carried into a call",
            place: Place::Carried(|delta, state| {
                state.kda.iter_mut().for_each(|slot| delta.all(&mut slot.convolution));
            }),
        },
        Site {
            id: "m8-cache",
            clause: "M8",
            what: "the cache carried into a call",
            place: Place::Carried(|delta, state| {
                state.mla.iter_mut().for_each(|cache| delta.all(&mut cache.rows));
            }),
        },
    ]);
    sites
}

type Line = (&'static str, &'static str, &'static str, Change);

fn epsilons() -> Vec<Line> {
    vec![
        ("n2-input-epsilon", "N2", "epsilon of input_layernorm", |delta, loaded| {
            loaded.layers.iter_mut().for_each(|layer| off(delta, &mut layer.input_norm));
        }),
        (
            "n2-post-attention-epsilon",
            "N2",
            "epsilon of post_attention_layernorm",
            |delta, loaded| {
                let layers = loaded.layers.iter_mut();
                layers.for_each(|layer| off(delta, &mut layer.post_attention_norm));
            },
        ),
        ("n2-final-epsilon", "N2", "epsilon of the final norm", |delta, loaded| {
            off(delta, &mut loaded.weights.final_norm);
        }),
        (
            "n2-attention-mix-epsilon",
            "N2",
            "epsilon of the attention-side mix's keys",
            |delta, loaded| {
                for layer in &mut loaded.layers {
                    layer.attention_mixer.epsilon = delta.of(layer.attention_mixer.epsilon);
                }
            },
        ),
        ("n2-mlp-mix-epsilon", "N2", "epsilon of the MLP-side mix's keys", |delta, loaded| {
            for layer in &mut loaded.layers {
                layer.mlp_mixer.epsilon = delta.of(layer.mlp_mixer.epsilon);
            }
        }),
        ("n2-output-mix-epsilon", "N2", "epsilon of the output mix's keys", |delta, loaded| {
            let mixer = &mut loaded.weights.output_mixer;
            mixer.epsilon = delta.of(mixer.epsilon);
        }),
        ("n2-kda-output-epsilon", "N2", "epsilon of o_norm", |delta, loaded| {
            kda(loaded).for_each(|weights| off(delta, &mut weights.o_norm));
        }),
        ("n2-routed-experts-epsilon", "N2", "epsilon of routed_expert_norm", |delta, loaded| {
            moe(loaded).for_each(|weights| off(delta, &mut weights.norm));
        }),
        ("n3-query-epsilon", "N3", "epsilon of q_a_layernorm", |delta, loaded| {
            mla(loaded).for_each(|weights| off(delta, &mut weights.q_a_norm));
        }),
        ("n3-latent-epsilon", "N3", "epsilon of kv_a_layernorm", |delta, loaded| {
            mla(loaded).for_each(|weights| off(delta, &mut weights.kv_a_norm));
        }),
    ]
}

fn weights() -> Vec<Line> {
    vec![
        ("l3-embedding", "L3", "the embedding row", |delta, loaded| {
            let source = Arc::clone(&loaded.weights.vocabulary);
            loaded.weights.vocabulary = Arc::new(OffEmbedding { source, delta });
        }),
        ("r3-folded-vector", "R3", "the folded vector of every mixer", |delta, loaded| {
            for layer in &mut loaded.layers {
                delta.all(&mut layer.attention_mixer.folded);
                delta.all(&mut layer.mlp_mixer.folded);
            }
            delta.all(&mut loaded.weights.output_mixer.folded);
        }),
        ("k6-low-rank", "K6", "f_a's output", |delta, loaded| {
            kda(loaded).for_each(|weights| matrix(delta, &mut weights.f_a));
        }),
        ("m1-query", "M1", "the normed low-rank query", |delta, loaded| {
            mla(loaded).for_each(|weights| delta.all(&mut weights.q_a_norm.weight));
        }),
        ("m2-latent", "M2", "the normed latent in the cache", |delta, loaded| {
            mla(loaded).for_each(|weights| delta.all(&mut weights.kv_a_norm.weight));
        }),
        ("m3-rope-part", "M3", "the rope part in the cache", |delta, loaded| {
            let first = loaded.shape.mla.kv_lora;
            mla(loaded).for_each(|weights| off_rows(delta, &mut weights.kv_a, first));
        }),
        ("m7-gate", "M7", "the argument of MLA's output gate", |delta, loaded| {
            let is_mla = |l: &&mut LayerWeights| matches!(l.attention, AttentionWeights::Mla(_));
            let layers = loaded.layers.iter_mut().filter(is_mla);
            layers.for_each(|layer| matrix(delta, &mut layer.gate));
        }),
    ]
}

fn mlp_weights() -> Vec<Line> {
    vec![
        ("e1-router-logits", "E1", "the router's logits", |delta, loaded| {
            moe(loaded).for_each(|weights| matrix(delta, &mut weights.router));
        }),
        ("e6-latent", "E6", "the latent, as the experts' w1 and w3 see it", |delta, loaded| {
            experts(loaded, |expert| {
                matrix(delta, &mut expert.w1);
                matrix(delta, &mut expert.w3);
            });
        }),
        ("e7-gate", "E7", "w1's product", |delta, loaded| {
            experts(loaded, |expert| matrix(delta, &mut expert.w1));
        }),
        ("e7-up", "E7", "w3's product", |delta, loaded| {
            experts(loaded, |expert| matrix(delta, &mut expert.w3));
        }),
        ("e8-norm", "E8", "the normed sum over experts", |delta, loaded| {
            moe(loaded).for_each(|weights| delta.all(&mut weights.norm.weight));
        }),
    ]
}

fn kda(loaded: &mut Loaded) -> impl Iterator<Item = &mut KdaWeights> {
    loaded.layers.iter_mut().filter_map(|layer| match &mut layer.attention {
        AttentionWeights::Kda(weights) => Some(&mut **weights),
        AttentionWeights::Mla(_) => None,
    })
}

fn mla(loaded: &mut Loaded) -> impl Iterator<Item = &mut MlaWeights> {
    loaded.layers.iter_mut().filter_map(|layer| match &mut layer.attention {
        AttentionWeights::Mla(weights) => Some(&mut **weights),
        AttentionWeights::Kda(_) => None,
    })
}

fn moe(loaded: &mut Loaded) -> impl Iterator<Item = &mut MoeWeights> {
    loaded.layers.iter_mut().filter_map(|layer| match &mut layer.mlp {
        MlpWeights::Moe(weights) => Some(&mut **weights),
        MlpWeights::Dense(_) => None,
    })
}

fn experts(loaded: &mut Loaded, change: impl Fn(&mut k3_engine::model::Expert)) {
    let experts = loaded.experts.0.iter_mut().flatten();
    experts.for_each(|expert| change(Arc::make_mut(expert)));
}

fn off(delta: Delta, norm: &mut Norm) {
    norm.epsilon = delta.of(norm.epsilon);
}

fn matrix(delta: Delta, matrix: &mut Matrix) {
    off_rows(delta, matrix, 0);
}

/// The matrix in F32 with every row from `first` on off by δ: its products are off by δ.
fn off_rows(delta: Delta, matrix: &mut Matrix, first: usize) {
    let (rows, columns) = (matrix.rows(), matrix.columns());
    let mut wide = vec![0.0; columns];
    let mut values = Vec::with_capacity(rows * columns);
    for row in 0..rows {
        rows::widen(matrix.view().row(row), &mut wide);
        let off = |value: f64| if row < first { value } else { delta.of(value) };
        values.extend(wide.iter().map(|value| off(*value) as f32));
    }
    // As many values as the matrix has elements.
    if let Ok(off) = Matrix::from_f32(rows, columns, &values) {
        *matrix = off;
    }
}

/// A vocabulary whose embedding rows are off by δ.
#[derive(Debug)]
struct OffEmbedding {
    source: Arc<dyn VocabularySource>,
    delta: Delta,
}

impl VocabularySource for OffEmbedding {
    fn embed(&self, id: usize, take: &mut dyn FnMut(Row<'_>)) -> Result<(), EngineError> {
        self.source.embed(id, &mut |row| {
            let mut wide = vec![0.0; row.columns()];
            rows::widen(row, &mut wide);
            let off: Vec<f32> = wide.iter().map(|value| self.delta.of(*value) as f32).collect();
            take(Row::F32(&off));
        })
    }

    fn head(&self, take: &mut dyn FnMut(Range<usize>, MatrixRef<'_>)) -> Result<(), EngineError> {
        self.source.head(take)
    }
}
