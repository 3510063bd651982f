//! What a config says in other places and other spellings than those that are read. Other engines
//! look there first: what is said twice must agree, and a field that would change the numbers must
//! have the value that changes nothing.

use super::fields::Fields;
use crate::json::Value;
use k3_core::config::MXFP4_GROUP_COLUMNS;

/// The file that ModelOpt writes beside a config.
pub(super) const HF_QUANT_FILE: &str = "hf_quant_config.json";

const QUANTIZATION: &str = "text_config.quantization_config";
const QUANTIZATION_FORMAT: &str = "text_config.quantization_config.format";

/// Other places and older names of [`QUANTIZATION`].
const QUANTIZATION_ELSEWHERE: [&str; 5] = [
    "quantization_config",
    "compression_config",
    "quantization",
    "text_config.compression_config",
    "text_config.quantization",
];

/// Keys of a quantisation that only tell how it was written.
const INFORMING: [&str; 3] = ["version", "quantization_status", "global_compression_ratio"];

/// Fields that are read, and what other models call them; top-k is found by [`is_top_k`].
const SPELLINGS: [(&str, &[&str]); 12] = [
    ("num_experts", &["n_routed_experts", "num_local_experts", "num_routed_experts", "n_experts"]),
    ("num_shared_experts", &["n_shared_experts", "num_shared_expert"]),
    ("moe_renormalize", &["norm_topk_prob", "norm_top_k_prob", "renormalize"]),
    ("moe_router_activation_func", &["scoring_func", "score_func", "score_function"]),
    ("num_expert_group", &["n_group", "n_expert_groups", "num_expert_groups"]),
    ("routed_scaling_factor", &["route_scale", "router_scaling_factor", "routing_scaling_factor"]),
    ("first_k_dense_replace", &["n_dense_layers", "num_dense_layers", "moe_layer_start_index"]),
    ("rms_norm_eps", &["norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rms_norm_epsilon"]),
    ("hidden_act", &["hidden_activation", "activation_function"]),
    ("num_hidden_layers", &["num_layers", "n_layers", "n_layer"]),
    ("num_attention_heads", &["n_heads", "n_head", "num_heads"]),
    ("hidden_size", &["d_model", "n_embd"]),
];
const TOP_K: &str = "num_experts_per_token";

/// Parts of names, without underscores, of what would change the numbers unless it is off.
const OFF: &[&str] = &[
    "softcap",
    "slidingwindow",
    "windowsize",
    "attentionwindow",
    "attentionchunk",
    "ropescaling",
    "ropeparameters",
    "clipqkv",
    "alibi",
    "qknorm",
    "qklayernorm",
    "attentionsink",
    "sinktoken",
    "parallelresidual",
    "querypreattnscalar",
];

/// The same of factors, which change nothing at 1.
const FACTOR: &[&str] = &[
    "multiplier",
    "logitscale",
    "logitsscal",
    "scaleemb",
    "embscale",
    "embeddingscale",
    "scaledepth",
    "residualscale",
    "pretrainingtp",
];

/// Notes every contradiction; gives the fields that are not read, have to do with the numbers, and
/// agree. `beside` is the document of [`HF_QUANT_FILE`].
pub(super) fn check(fields: &mut Fields<'_>, beside: Option<&Value<'_>>) -> Vec<String> {
    let mut agreeing = Vec::new();
    quantization(fields, &mut agreeing);
    if let Some(beside) = beside {
        model_opt(fields, beside);
    }
    let mut found = Vec::new();
    walk(fields.root(), "", &mut found);
    for (path, key, value) in found {
        let (parent, _) = path.rsplit_once('.').unwrap_or(("", &path));
        let problem = match same_as(fields, parent, key) {
            _ if *value == Value::Null => None,
            Some(read) => match fields.lookup(&read) {
                Some(other) if !equal(value, other) => {
                    Some(format!("{} contradicts {read}, {}", value.brief(), other.brief()))
                }
                _ => None,
            },
            None => match neutral(fields, parent, key, value) {
                Some(true) => None,
                Some(false) => Some(format!(
                    "{} would change the numbers and is not computed here; expected none",
                    value.brief()
                )),
                None => continue,
            },
        };
        match problem {
            Some(what) => fields.note(&path, what),
            None => agreeing.push(listed(&path, value)),
        }
    }
    agreeing
}

fn listed(path: &str, value: &Value<'_>) -> String {
    format!("{path} {}: not read, another value would be refused", value.brief())
}

/// Every member but those of the vision tower and the quantisation, with its path.
fn walk<'a>(value: &'a Value<'a>, path: &str, found: &mut Vec<(String, &'a str, &'a Value<'a>)>) {
    let Value::Object(members) = value else {
        return;
    };
    for (key, value) in members {
        let key: &str = key;
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        if key == "vision_config" || path == QUANTIZATION {
            continue;
        }
        if !QUANTIZATION_ELSEWHERE.contains(&path.as_str()) {
            found.push((path.clone(), key, value));
            walk(value, &path, found);
        }
    }
}

/// The field that is read and says the same thing as `key` in `parent`, if that is another.
fn same_as(fields: &Fields<'_>, parent: &str, key: &str) -> Option<String> {
    if !matches!(parent, "" | "text_config") {
        return None;
    }
    let name = SPELLINGS.iter().find(|(_, spellings)| spellings.contains(&key));
    let name = match name {
        Some((name, _)) => name,
        None if key != TOP_K && is_top_k(key) => TOP_K,
        None if parent.is_empty() && !fields.has_read(key) => key,
        None => return None,
    };
    Some(format!("text_config.{name}")).filter(|path| fields.has_read(path))
}

/// Whether a name is another spelling of [`TOP_K`]. (`top_k` alone belongs to sampling.)
fn is_top_k(key: &str) -> bool {
    let plain = plain(key);
    let chosen = ["pertok", "topk", "selected", "activ", "used"];
    (plain.contains("expert") && chosen.iter().any(|word| plain.contains(word)))
        || ["moetopk", "routertopk", "moek"].contains(&plain.as_str())
}

/// Whether a field has a value that changes no number; `None` for a field without a meaning here.
fn neutral(fields: &Fields<'_>, parent: &str, key: &str, value: &Value<'_>) -> Option<bool> {
    let plain = plain(key);
    let has = |parts: &[&str]| parts.iter().any(|part| plain.contains(part));
    let number = number(value);
    if has(FACTOR) {
        return Some(number == Some(1.0) || *value == Value::Null);
    }
    // The router's bias is of the release; how it is switched on is nobody's agreed name.
    let is_bias = plain.ends_with("bias") && !has(&["rout", "expert", "correction", "score"]);
    if !has(OFF) && !is_bias {
        return None;
    }
    let is_off = match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.iter().all(|(key, value)| match &**key {
            "type" | "rope_type" => matches!(value, Value::String(kind) if kind == "default"),
            // No position is rotated.
            key => key == "rope_theta",
        }),
        Value::String(text) => text.is_empty() || text == "none",
        _ => number == Some(0.0),
    };
    let switch = format!("{parent}.use_sliding_window");
    let switch = fields.lookup(switch.trim_start_matches('.'));
    Some(is_off || (has(&["slidingwindow"]) && switch == Some(&Value::Bool(false))))
}

fn plain(key: &str) -> String {
    key.chars().filter(|c| *c != '_').flat_map(char::to_lowercase).collect()
}

fn number(value: &Value<'_>) -> Option<f64> {
    match value {
        Value::Number(text) => text.parse().ok(),
        _ => None,
    }
}

fn equal(a: &Value<'_>, b: &Value<'_>) -> bool {
    a == b || number(a).is_some_and(|a| Some(a) == number(b))
}

fn quantization(fields: &mut Fields<'_>, agreeing: &mut Vec<String>) {
    for place in QUANTIZATION_ELSEWHERE {
        let Some(there) = fields.lookup(place).filter(|value| **value != Value::Null) else {
            continue;
        };
        match fields.lookup(QUANTIZATION).filter(|value| **value != Value::Null) {
            // Of a flat file it is told once that it is one.
            None if fields.lookup("text_config").is_none() => {}
            None => fields.note(place, format!("is here, expected as {QUANTIZATION}")),
            Some(nested) => match difference(there, nested) {
                Some((key, says, nested)) => fields.note(
                    &format!("{place}{key}"),
                    format!("{says} contradicts {QUANTIZATION}{key}, {nested}"),
                ),
                None => agreeing.push(listed(place, there)),
            },
        }
    }
}

/// The first thing that `a` says and `b` does not: where, and what each says.
fn difference(a: &Value<'_>, b: &Value<'_>) -> Option<(String, String, String)> {
    let (Value::Object(a), Value::Object(b)) = (a, b) else {
        return (!equal(a, b)).then(|| (String::new(), a.brief(), b.brief()));
    };
    a.iter().filter(|(key, _)| !INFORMING.contains(&&***key)).find_map(|(key, value)| {
        let (inner, says, other) = match b.get(key) {
            Some(other) => difference(value, other)?,
            None if *value == Value::Null => return None,
            None => (String::new(), value.brief(), "which has no such key".to_owned()),
        };
        Some((format!(".{}{inner}", key.escape_debug()), says, other))
    })
}

/// ModelOpt names an algorithm; the release is plain MXFP4.
fn model_opt(fields: &mut Fields<'_>, document: &Value<'_>) {
    let Value::Object(root) = document else {
        return fields.note(HF_QUANT_FILE, format!("expected an object, got {}", document.brief()));
    };
    let Some(Value::Object(says)) = root.get("quantization") else {
        return;
    };
    let group = MXFP4_GROUP_COLUMNS.to_string();
    let format = fields.lookup(QUANTIZATION_FORMAT).map_or("missing".to_owned(), Value::brief);
    for (key, value) in says {
        let agrees = match (&**key, value) {
            ("quant_algo", Value::String(name)) => name.eq_ignore_ascii_case("mxfp4"),
            ("quant_algo", _) => false,
            ("group_size", value) => *value == Value::Null || *value == Value::Number(&group),
            ("kv_cache_quant_algo", value) => *value == Value::Null,
            _ => true,
        };
        if !agrees {
            let at = format!("{HF_QUANT_FILE} beside it: quantization.{key}");
            let what = format!("{} contradicts {QUANTIZATION_FORMAT}, {format}", value.brief());
            fields.note(&at, what);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_top_k() {
        for key in ["num_experts_per_tok", "moe_top_k", "moe_topk", "n_activated_experts"] {
            assert!(is_top_k(key), "{key}");
        }
        for key in ["top_k", "topk_method", "topk_group", "use_grouped_topk", "num_experts"] {
            assert!(!is_top_k(key), "{key}");
        }
    }
}
