//! Layer lists of a config that name no layer, one twice, or leave one out.

use serde_json::json;

use super::config::{LINEAR, refused};

#[test]
fn h06_layers_out_of_range_name_the_index_and_one_based() {
    for (list, written) in
        [(json!([0, 1, 2, 3]), "[0]: layer 0"), (json!([1, 2, 999]), "[2]: layer 999")]
    {
        let parts = ["kda_layers", written, "is outside 1..=4", "ONE-based"];
        refused(&format!("{LINEAR}.kda_layers"), list, &parts);
    }
    for layer in [json!(-1), json!(5), json!(18_446_744_073_709_551_615_u64)] {
        let parts = ["full_attn_layers[0]", "is outside 1..=4"];
        refused(&format!("{LINEAR}.full_attn_layers"), json!([layer]), &parts);
    }
}

#[test]
fn h06_an_unsorted_list_is_refused() {
    let parts = ["kda_layers[2]: layer 2 after 3", "ONE-based", "must rise"];
    refused(&format!("{LINEAR}.kda_layers"), json!([1, 3, 2]), &parts);
}

#[test]
fn a_layer_twice_in_one_list() {
    for list in [json!([1, 2, 2, 3]), json!([1, 2, 3, 1])] {
        refused(&format!("{LINEAR}.kda_layers"), list, &["kda_layers[", "stands twice"]);
    }
}

#[test]
fn h06_a_layer_in_both_lists_or_in_none_is_refused() {
    let key = format!("{LINEAR}.full_attn_layers");
    let lists = "of kda_layers and full_attn_layers";
    refused(&key, json!([3, 4]), &["layer 3 (ONE-based)", "stands in both", lists]);
    refused(&key, json!([]), &["layer 4 (ONE-based)", "stands in neither", lists]);
}
