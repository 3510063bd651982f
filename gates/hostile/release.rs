//! The whole release as holes: 497,220 tensors indexed and bound in little memory.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::Instant;

use k3_checkpoint::names::VISION;
use k3_checkpoint::plan::{ExpectedTensor, visit_layer, visit_model};
use k3_checkpoint::write::{FileLayout, TensorSpec};
use k3_checkpoint::{Binding, Checkpoint, Dtype, ModelShape, UnusedClass};
use serde_json::{Value, json};

use super::make::{Folder, Zeros, read_config, small_config, with, zeros};
use crate::support::process::{cpu_seconds, status_bytes};

/// The released model's config, from its published numbers.
fn released_config() -> Value {
    let mla: Vec<usize> = (1..=93).filter(|layer| layer % 4 == 0 || *layer == 93).collect();
    let kda: Vec<usize> = (1..=93).filter(|layer| !mla.contains(layer)).collect();
    let mut config = small_config();
    for (key, value) in [
        ("hidden_size", 7168),
        ("vocab_size", 163_840),
        ("num_hidden_layers", 93),
        ("num_attention_heads", 96),
        ("num_key_value_heads", 96),
        ("q_lora_rank", 1536),
        ("kv_lora_rank", 512),
        ("qk_nope_head_dim", 128),
        ("qk_rope_head_dim", 64),
        ("v_head_dim", 128),
        ("attn_res_block_size", 12),
        ("intermediate_size", 33_792),
        ("num_experts", 896),
        ("num_experts_per_token", 16),
        ("routed_expert_hidden_size", 3584),
        ("moe_intermediate_size", 3072),
        ("linear_attn_config.num_heads", 96),
        ("linear_attn_config.head_dim", 128),
    ] {
        config = with(config, &format!("text_config.{key}"), json!(value));
    }
    config = with(config, "text_config.linear_attn_config.full_attn_layers", json!(mla));
    with(config, "text_config.linear_attn_config.kda_layers", json!(kda))
}

/// Writes a shard's head and makes the file as long as its data would be; gives its size.
fn put_sparse(folder: &Folder, file: &str, tensors: &[Zeros]) -> std::io::Result<u64> {
    let specs = tensors.iter().map(|tensor| TensorSpec {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: &tensor.shape,
    });
    let layout = FileLayout::new(specs, &[]).expect("layout");
    let sparse = File::create(folder.file(file))?;
    sparse.set_len(layout.file_bytes)?;
    sparse.write_all_at(&layout.head, 0)?;
    Ok(layout.file_bytes)
}

/// All 96 shards with no data after their headers, and the index.
fn sparse_replica(config: &Value) -> std::io::Result<(Folder, u64)> {
    let folder = Folder::new();
    let shape = ModelShape::derive(&read_config(config)).expect("shape");
    let mut index = String::from("{\"metadata\":{\"total_size\":1560860324864},\"weight_map\":{");
    let mut apparent_bytes = 0;
    for number in 1..=96 {
        let mut tensors = Vec::new();
        let mut put = |expected: ExpectedTensor<'_>| {
            tensors.push(zeros(expected.name, expected.dtype, expected.shape));
        };
        match number {
            94 => visit_model(&shape, &mut put),
            95 | 96 => {
                let wanted = if number == 95 { "mm_projector" } else { "vision_tower" };
                for template in VISION.iter().filter(|row| row.template.starts_with(wanted)) {
                    let names = template.names();
                    tensors.extend(names.map(|name| zeros(&name, Dtype::Bf16, template.shape)));
                }
            }
            _ => visit_layer(&shape, number - 1, &mut put),
        }
        let file = format!("model-{number:05}-of-000096.safetensors");
        apparent_bytes += put_sparse(&folder, &file, &tensors)?;
        for tensor in &tensors {
            let comma = if index.ends_with('{') { "" } else { "," };
            index.push_str(&format!("{comma}\n    \"{}\": \"{file}\"", tensor.name));
        }
    }
    index.push_str("\n  }\n}");
    folder.put("model.safetensors.index.json", index);
    Ok((folder, apparent_bytes))
}

#[test]
fn c17_the_whole_release_is_indexed_in_little_memory() {
    let config = released_config();
    let (folder, apparent_bytes) = sparse_replica(&config).expect("a disk that takes holes");
    // Linux forgets the highest memory use when it is told to; elsewhere the print says less.
    let _ = fs::write("/proc/self/clear_refs", "5");
    let memory_before = status_bytes("VmRSS:");
    let cpu_before = cpu_seconds();
    let start = Instant::now();
    let checkpoint = Checkpoint::open(folder.path()).expect("opens");
    let opened = start.elapsed();
    let binding = Binding::bind(&checkpoint, &read_config(&config)).expect("binds");
    let bound = start.elapsed();
    println!(
        "{} tensors in {} shards of {apparent_bytes} bytes: opened {opened:?}, bound {bound:?} \
         ({:.2} s of processor time), at most {} MB more resident, \
         index {} bytes, binding {} bytes",
        checkpoint.len(),
        checkpoint.shards().len(),
        cpu_seconds() - cpu_before,
        status_bytes("VmHWM:").saturating_sub(memory_before) / 1_000_000,
        checkpoint.held_bytes(),
        binding.held_bytes(),
    );
    assert_eq!(checkpoint.len(), 497_220);
    assert_eq!(checkpoint.tensor_bytes(), 1_560_860_324_864);
    assert_eq!(checkpoint.notes(), []);
    assert!(checkpoint.held_bytes() + binding.held_bytes() < 120_000_000);
    let unused: Vec<_> = binding.unused_counts().into_iter().collect();
    assert_eq!(
        unused,
        [
            (UnusedClass::VisionTower, 165),
            (UnusedClass::MmProjector, 3),
            (UnusedClass::ResidualBeforeFirstBank, 2)
        ]
    );
    let last = binding.expert(92, 895).expect("the last expert");
    let info = checkpoint.info(last.w3_scale);
    assert_eq!((info.shape, info.shard), (&[3072, 112][..], 92));
}
