//! `model.safetensors.index.json` of a layout.

use serde_json::Value;

use super::{Layout, SynthError};

/// The whole text: `metadata.total_size`, then every tensor with its shard, in file order.
///
/// # Errors
/// A shard that cannot be laid out.
pub fn index_text(layout: &Layout<'_>) -> Result<String, SynthError> {
    let mut map = String::new();
    let mut total_bytes = 0;
    for index in 0..layout.shard_count() {
        let plan = layout.shard(index)?;
        total_bytes += plan.tensor_bytes();
        let file = Value::from(plan.file.as_str()).to_string();
        for tensor in &plan.tensors {
            map.push_str(if map.is_empty() { "\n" } else { ",\n" });
            map.push_str(&Value::from(tensor.name.as_str()).to_string());
            map.push(':');
            map.push_str(&file);
        }
    }
    Ok(format!("{{\"metadata\":{{\"total_size\":{total_bytes}}},\"weight_map\":{{{map}\n}}}}\n"))
}
