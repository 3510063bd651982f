//! A checkpoint for tests: read with the `safetensors` crate, or a random one made in memory.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use k3_checkpoint::Dtype;
use k3_core::config::RawConfig;
use k3_engine::kernels::matrix::SharedBytes;
use k3_engine::model::{EngineError, TensorSpec, WeightSource};

/// Dtype, shape, bytes.
type StoredTensor = (Dtype, Vec<usize>, Arc<Vec<u8>>);

/// Tensors by name.
pub struct TestCheckpoint {
    pub raw: RawConfig,
    pub tensors: HashMap<String, StoredTensor>,
}

impl WeightSource for TestCheckpoint {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let Some((dtype, shape, bytes)) = self.tensors.get(&spec.name) else {
            return Err(EngineError::source(&spec.name, "missing"));
        };
        if (*dtype, shape) != (spec.dtype, &spec.shape) {
            let text = format!("expected {:?} {:?}", spec.dtype, spec.shape);
            return Err(EngineError::source(&spec.name, text));
        }
        Ok(SharedBytes::new(bytes.clone(), 0..bytes.len()))
    }
}

impl TestCheckpoint {
    /// Every shard of a folder.
    pub fn open(folder: &Path) -> Self {
        let raw = k3_checkpoint::config::read(&folder.join("config.json")).unwrap();
        let mut tensors = HashMap::new();
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|e| e == "safetensors") {
                let data = std::fs::read(path).unwrap();
                for (name, view) in safetensors::SafeTensors::deserialize(&data).unwrap().iter() {
                    let dtype = match view.dtype() {
                        safetensors::Dtype::F32 => Dtype::F32,
                        safetensors::Dtype::BF16 => Dtype::Bf16,
                        safetensors::Dtype::U8 => Dtype::U8,
                        other => panic!("{name}: {other:?}"),
                    };
                    let bytes = Arc::new(view.data().to_vec());
                    tensors.insert(name.to_owned(), (dtype, view.shape().to_vec(), bytes));
                }
            }
        }
        Self { raw, tensors }
    }

    /// Changes the F32 or BF16 bytes of a tensor.
    pub fn edit(&mut self, name: &str, change: impl FnOnce(&mut [u8])) {
        let (_, _, bytes) = self.tensors.get_mut(name).unwrap();
        change(Arc::<Vec<u8>>::make_mut(bytes));
    }
}
