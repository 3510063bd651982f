//! The engine on an oracle whose tensors can be changed in memory.
//!
//! They are read with the `safetensors` crate, not with the reader that the engine has otherwise.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use k3_checkpoint::Dtype;
use k3_core::config::RawConfig;
use k3_engine::kernels::matrix::SharedBytes;
use k3_engine::kernels::path::KernelPath;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    Engine, EngineError, EngineOptions, EngineSequence, Shape, TensorSpec, WeightSource,
};
use k3_gates::subject::argmax;

use super::{Oracle, bits};

/// An oracle and its tensors.
pub struct Tiny {
    pub oracle: Oracle,
    pub checkpoint: TestCheckpoint,
    pub full_ids: Vec<u32>,
    pub prompt_ids: Vec<u32>,
    pub greedy_ids: Vec<u32>,
}

impl Tiny {
    /// The oracle that ships.
    pub fn open() -> Self {
        Self::of(Oracle::tiny())
    }

    pub fn of(oracle: Oracle) -> Self {
        Self {
            checkpoint: TestCheckpoint::open(&oracle.model),
            full_ids: oracle.ids("full_ids"),
            prompt_ids: oracle.ids("prompt_ids"),
            greedy_ids: oracle.ids("greedy_ids"),
            oracle,
        }
    }

    pub fn engine(&self, options: EngineOptions) -> Arc<Engine> {
        self.engine_on(KernelPath::SCALAR, options)
    }

    pub fn engine_on(&self, path: KernelPath, options: EngineOptions) -> Arc<Engine> {
        let shape = Shape::derive(&self.checkpoint.raw).unwrap();
        let kernels = Kernels::on(path);
        Arc::new(Engine::resident(kernels, shape, &self.checkpoint, options).unwrap())
    }
}

/// Greedy decoding with a carried state gives the published ids, and its logits are those of full
/// recomputation in bits.
#[track_caller]
pub fn greedy_ids_and_incremental_bits(tiny: &Tiny) {
    let engine = tiny.engine(EngineOptions::default());
    let mut carried = EngineSequence::new(engine.clone());
    let mut last = carried.feed_last(&tiny.prompt_ids).unwrap();
    let mut ids = tiny.prompt_ids.clone();
    for expected in &tiny.greedy_ids {
        let recomputed = EngineSequence::new(engine.clone()).feed_last(&ids).unwrap();
        assert_eq!(bits(&recomputed), bits(&last), "after {} ids", ids.len());
        let row: Vec<f64> = last.iter().map(|logit| f64::from(*logit)).collect();
        assert_eq!(argmax(&row).unwrap(), *expected);
        ids.push(*expected);
        last = carried.feed_last(&[*expected]).unwrap();
    }
    assert_eq!(ids, tiny.full_ids);
}

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
