//! The strict reader on the tiny checkpoint.

use k3_checkpoint::UnusedClass;
use k3_checkpoint::binding::Binding;
use k3_checkpoint::names::Role;
use k3_checkpoint::store::Checkpoint;

use super::support::tiny;

/// A complete small checkpoint binds; the other reader sees the same bytes.
#[test]
fn tiny_checkpoint_binds_and_reads_as_the_safetensors_crate_does() {
    let checkpoint = Checkpoint::open(&tiny()).unwrap();
    let config = k3_checkpoint::config::read(&checkpoint.config_path()).unwrap();
    let binding = Binding::bind(&checkpoint, &config).unwrap();
    assert_eq!(checkpoint.notes(), []);
    assert_eq!(checkpoint.tensor_bytes(), 4_685_792);
    assert_eq!(binding.bound_count() + binding.unused().len(), checkpoint.len());
    let unused: Vec<_> = binding.unused_counts().into_iter().collect();
    let vision = [(UnusedClass::VisionTower, 2), (UnusedClass::MmProjector, 1)];
    assert_eq!(unused[..2], vision);
    assert_eq!(unused[2..], [(UnusedClass::ResidualBeforeFirstBank, 2)]);
    assert_eq!(binding.layer_tensor(0, Role::AttentionResNorm), None);
    assert!(binding.layer_tensor(0, Role::KdaQProj).is_some());
    assert!(binding.layer_tensor(3, Role::KdaQProj).is_none());
    assert!(binding.expert(0, 0).is_none() && binding.expert(12, 7).is_some());
    let mut compared = 0;
    for shard in checkpoint.shards() {
        let bytes = std::fs::read(shard.path()).unwrap();
        let other = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in other.tensors() {
            let info = checkpoint.tensor(&name).unwrap();
            assert_eq!(info.shape, view.shape());
            assert_eq!(info.dtype.name(), view.dtype().to_string());
            assert_eq!(checkpoint.read(&name).unwrap(), view.data());
            compared += 1;
        }
    }
    assert_eq!(compared, checkpoint.len());
}
