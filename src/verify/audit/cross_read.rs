//! Two readers on one checkpoint: the engine's and the reference's must agree on every field of the
//! config, and on every tensor: dtype, shape, shard, absolute offset, length, and its first and
//! last bits.

use rayon::prelude::*;

use super::census::file_name;
use super::{Finding, Findings};
use k3_checkpoint::{Checkpoint, TensorInfo};
use k3_core::config::RawConfig;
use k3_reference::Reader;

/// Bytes compared at each end of a tensor.
pub const END_BYTES: u64 = 16;

macro_rules! fields {
    ($ours:ident, $theirs:ident: $($field:ident)+) => {{
        // Without `..`, so that a field that is not compared does not compile.
        let RawConfig { $($field),+ } = $ours;
        let text = |value: &dyn std::fmt::Debug| format!("{value:?}");
        let pairs = [$((stringify!($field), text($field), text(&$theirs.$field))),+];
        pairs.into_iter().filter(|(_, ours, theirs)| ours != theirs)
    }};
}

/// The fields in which the engine's reading of a config (`ours`) and the reference's differ, in a
/// line each.
#[must_use]
pub fn differing_fields(ours: &RawConfig, theirs: &RawConfig) -> Vec<String> {
    let differing = fields!(ours, theirs:
        hidden_size vocab_size num_hidden_layers rms_norm_eps kda_num_heads kda_head_dim
        short_conv_kernel_size gate_lower_bound full_attn_layers kda_layers num_attention_heads
        q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim attn_res_block_size
        first_k_dense_replace intermediate_size num_experts num_experts_per_token
        routed_expert_hidden_size moe_intermediate_size num_shared_experts moe_renormalize
        routed_scaling_factor activation_situ_beta activation_situ_linear_beta token_ids
    );
    differing
        .map(|(field, ours, theirs)| {
            format!("{field}: the engine reads {ours}, the reference {theirs}")
        })
        .collect()
}

/// Compares every tensor that either reader knows. Tensors in missing shards are skipped.
///
/// # Errors
/// What the engine's reader says when it cannot read; the reference's failures are findings.
#[must_use]
pub fn cross_read(checkpoint: &Checkpoint, reference: &Reader) -> Findings {
    let tensors: Vec<TensorInfo<'_>> = checkpoint.tensors().collect();
    let differs = |info: &TensorInfo<'_>| {
        difference(checkpoint, reference, info).map(|what| Finding {
            file: file_name(checkpoint, info.shard),
            tensor: Some(info.name.to_owned()),
            what,
        })
    };
    let found: Vec<Finding> = tensors.par_iter().filter_map(differs).collect();
    let mut findings = Findings::default();
    found.into_iter().for_each(|finding| findings.push(finding));
    let mut only: Vec<&str> = reference
        .tensor_names()
        .filter(|name| checkpoint.find(name).is_none() && !checkpoint.is_in_missing_shard(name))
        .collect();
    only.sort_unstable();
    for name in only {
        findings.push(Finding {
            file: ".".to_owned(),
            tensor: Some(name.to_owned()),
            what: "the reference's reader finds it, the engine's does not".to_owned(),
        });
    }
    findings
}

fn difference(
    checkpoint: &Checkpoint,
    reference: &Reader,
    info: &TensorInfo<'_>,
) -> Option<String> {
    let place = match reference.place(info.name) {
        Ok(place) => place,
        Err(error) => return Some(format!("the reference's reader: {error}")),
    };
    let pairs = [
        ("dtype", info.dtype.name().to_owned(), place.dtype),
        ("shape", format!("{:?}", info.shape), format!("{:?}", place.shape)),
        ("shard", file_name(checkpoint, info.shard), place.shard),
        ("offset", info.offset.to_string(), place.offset_bytes.to_string()),
        ("length", info.byte_len.to_string(), place.length_bytes.to_string()),
    ];
    for (what, ours, theirs) in pairs {
        if ours != theirs {
            return Some(format!("{what}: the engine reads {ours}, the reference {theirs}"));
        }
    }
    let length = info.byte_len.min(END_BYTES);
    for (what, start) in [("first", 0), ("last", info.byte_len - length)] {
        let mut ours = vec![0; length as usize];
        if let Err(error) = checkpoint.read_into(info, start..start + length, &mut ours) {
            return Some(error.to_string());
        }
        match reference.part(info.name, start, length as usize) {
            Ok(theirs) if theirs == ours => {}
            Ok(theirs) => {
                return Some(format!(
                    "{what} {length} bytes: engine {ours:02x?}, reference {theirs:02x?}"
                ));
            }
            Err(error) => return Some(format!("the reference's reader: {error}")),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::embedded_configs;
    use k3_reference::config::parse_config;

    fn read(bytes: &[u8]) -> [RawConfig; 2] {
        let path = Path::new("config.json");
        [
            k3_checkpoint::config::parse(bytes, path).unwrap(),
            parse_config(bytes, path.to_owned()).unwrap(),
        ]
    }

    #[test]
    fn both_read_the_same_in_every_shipped_config() {
        for config in embedded_configs() {
            let [ours, theirs] = read(config);
            assert_eq!(differing_fields(&ours, &theirs), [""; 0]);
        }
    }

    /// A key that one side takes for another: no two fields of this config are equal, so both must
    /// read the right one of each to agree, and any other value in any field is told by its name.
    #[test]
    fn a_misread_key_is_told_by_name() {
        let mut file: Value = serde_json::from_slice(embedded_configs().next().unwrap()).unwrap();
        let text = &mut file["text_config"];
        let sizes = [
            "hidden_size",
            "vocab_size",
            "q_lora_rank",
            "kv_lora_rank",
            "qk_nope_head_dim",
            "qk_rope_head_dim",
            "v_head_dim",
            "attn_res_block_size",
            "intermediate_size",
            "num_experts",
            "num_experts_per_token",
            "num_shared_experts",
        ];
        for (place, key) in sizes.into_iter().enumerate() {
            text[key] = json!(100 - 3 * place);
        }
        (text["num_attention_heads"], text["num_key_value_heads"]) = (json!(7), json!(7));
        text["routed_expert_hidden_size"] = json!(160);
        text["moe_intermediate_size"] = json!(192);
        let linear = &mut text["linear_attn_config"];
        for (key, size) in [("num_heads", 9), ("head_dim", 31), ("short_conv_kernel_size", 5)] {
            linear[key] = json!(size);
        }
        text["activation_situ_beta"] = json!(3.5);
        text["routed_scaling_factor"] = json!(1.25);
        for (place, key) in ["bos_token_id", "eos_token_id", "pad_token_id"].iter().enumerate() {
            text[key] = json!(40 + place);
        }
        let [ours, theirs] = read(file.to_string().as_bytes());
        assert_eq!(differing_fields(&ours, &theirs), [""; 0]);

        let swapped = RawConfig { q_lora_rank: ours.kv_lora_rank, ..ours.clone() };
        let told = format!(
            "q_lora_rank: the engine reads {}, the reference {}",
            ours.kv_lora_rank, ours.q_lora_rank
        );
        assert_eq!(differing_fields(&swapped, &theirs), [told]);
        let zero_based = ours.kda_layers.iter().map(|layer| layer - 1).collect();
        let shifted = RawConfig { kda_layers: zero_based, ..ours };
        assert!(differing_fields(&theirs, &shifted)[0].starts_with("kda_layers: "));
    }
}
