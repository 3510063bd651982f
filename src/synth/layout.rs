//! Which tensor is in which shard, in which order.
//!
//! Layer n is wholly in shard n+1; embedding, head, the last norm and the last mix in one shard
//! after the layers; a replica of the release has the projector and the vision tower in two more.
//! Inside a shard: F32, then BF16, then U8, each by name. That is the order in which the common
//! writer of the format stores tensors; with it, and without blanks in the header, all 96 shards
//! get their published sizes to the byte, so it is the release's own. The trunk of a layer is one
//! run of bytes, and so is each expert: w1, w2, w3, packed before scale.

use std::path::Path;

use super::{SynthError, SynthModel};
use k3_checkpoint::names::{PROJECTOR_PREFIX, VISION};
use k3_checkpoint::plan::{ExpectedTensor, visit_layer, visit_model};
use k3_checkpoint::write::{FileLayout, TensorSpec};
use k3_checkpoint::{Dtype, Role};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Full name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, outermost first.
    pub shape: Vec<usize>,
    /// What it is in the text model; `None` for the vision tower.
    pub role: Option<Role>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPlan {
    /// File name.
    pub file: String,
    /// Its tensors in file order.
    pub tensors: Vec<PlannedTensor>,
    /// Header and sizes.
    pub layout: FileLayout,
}

/// The shards of a model. They are planned one at a time: half a million names are not kept.
#[derive(Debug, Clone, Copy)]
pub struct Layout<'a> {
    /// The model.
    pub model: &'a SynthModel,
    /// Whether the vision tower and its projector are there too.
    pub vision: bool,
}

impl Layout<'_> {
    /// How many shards there are.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        self.model.shape.layers.len() + if self.vision { 3 } else { 1 }
    }

    /// The name of shard `index` (from 0), numbered as in the release.
    #[must_use]
    pub fn file_name(&self, index: usize) -> String {
        let count = self.shard_count();
        format!("model-{:05}-of-{count:06}.safetensors", index + 1)
    }

    /// Shard `index` (from 0).
    ///
    /// # Errors
    /// [`SynthError::Layout`]: a header above the limit of readers.
    pub fn shard(&self, index: usize) -> Result<ShardPlan, SynthError> {
        let layers = self.model.shape.layers.len();
        let mut tensors = Vec::new();
        let keep = |tensor: ExpectedTensor<'_>| {
            tensors.push(PlannedTensor {
                name: tensor.name.to_owned(),
                dtype: tensor.dtype,
                shape: tensor.shape.to_vec(),
                role: Some(tensor.role),
            });
        };
        if index < layers {
            visit_layer(&self.model.shape, index, keep);
        } else if index == layers {
            visit_model(&self.model.shape, keep);
        } else {
            tensors = vision_tensors(index == layers + 1);
        }
        tensors.sort_by(|a, b| (rank(a.dtype), &a.name).cmp(&(rank(b.dtype), &b.name)));
        let file = self.file_name(index);
        let specs = tensors.iter().map(|tensor| TensorSpec {
            name: &tensor.name,
            dtype: tensor.dtype,
            shape: &tensor.shape,
        });
        let layout = FileLayout::new(specs, &[])
            .map_err(|reason| SynthError::Layout(reason.in_file(Path::new(&file))))?;
        Ok(ShardPlan { file, tensors, layout })
    }
}

/// Wider elements first.
fn rank(dtype: Dtype) -> u64 {
    u64::MAX - dtype.bits()
}

/// The tensors of the projector, or of the vision tower.
fn vision_tensors(projector: bool) -> Vec<PlannedTensor> {
    let mut tensors = Vec::new();
    for template in VISION {
        if template.template.starts_with(PROJECTOR_PREFIX) == projector {
            tensors.extend(template.names().map(|name| PlannedTensor {
                name,
                dtype: Dtype::Bf16,
                shape: template.shape.to_vec(),
                role: None,
            }));
        }
    }
    tensors
}

impl ShardPlan {
    /// Bytes of its tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.layout.tensor_bytes.iter().sum()
    }
}
