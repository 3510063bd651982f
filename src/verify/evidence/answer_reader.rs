//! The answers of a set, taken apart and held to what its config implies.

use super::*;

/// The shape of a stage of `rows` tokens.
fn stage_shape(stage: Stage, rows: usize, config: &RawConfig) -> Vec<usize> {
    let (heads, width) = (config.kda_num_heads, config.kda_head_dim);
    let attention = config.num_attention_heads;
    let query = config.qk_nope_head_dim + config.qk_rope_head_dim;
    let history = config.short_conv_kernel_size - 1;
    match stage {
        Stage::KdaQ | Stage::KdaK | Stage::KdaV | Stage::KdaZ | Stage::KdaG | Stage::KdaO => {
            vec![rows, heads, width]
        }
        Stage::KdaBeta => vec![rows, heads],
        Stage::KdaState => vec![heads, width, width],
        Stage::KdaConv => vec![3, history, heads * width],
        Stage::MlaQ => vec![rows, attention, query],
        Stage::MlaLatent => vec![rows, config.kv_lora_rank],
        Stage::MlaKRope => vec![rows, config.qk_rope_head_dim],
        Stage::MlaO => vec![rows, attention, config.v_head_dim],
        Stage::RouterScores => vec![rows, config.num_experts],
        Stage::RouterIds | Stage::RouterWeights => vec![rows, config.num_experts_per_token],
        Stage::MoeLatent | Stage::MoeSum => vec![rows, config.routed_expert_hidden_size],
        Stage::Logits => vec![rows, config.vocab_size],
        _ => vec![rows, config.hidden_size],
    }
}

/// The answers while they are being taken apart; what is left over at the end was not known.
pub(super) struct AnswerReader {
    pub(super) tensors: BTreeMap<String, TensorValues>,
    pub(super) json_path: PathBuf,
    pub(super) tensor_path: PathBuf,
    /// The names of all of them.
    pub(super) names: BTreeSet<String>,
    pub(super) vocabulary: usize,
}

impl AnswerReader {
    fn inconsistent(&self, name: &str, expected: String, got: String) -> EvidenceError {
        let in_json = !self.names.contains(name);
        let path = if in_json { &self.json_path } else { &self.tensor_path };
        let at = if in_json { name.to_owned() } else { format!("tensor {name:?}") };
        Problem::new(at, format!("expected {expected}, got {got}")).in_file(path).into()
    }

    /// What a set asks for, which never widens the limit.
    pub(super) fn tolerance(
        &self,
        key: &str,
        asked: Option<f64>,
        limit: f64,
    ) -> Result<f64, EvidenceError> {
        match asked.unwrap_or(limit) {
            asked if asked > 0.0 && asked <= limit => Ok(asked),
            got => {
                let expected = format!("a number above 0 and at most {limit:e}, the outer limit");
                Err(self.inconsistent(key, expected, format!("{got:e}")))
            }
        }
    }

    /// Every tensor that the set says it has, by its full name, is there.
    pub(super) fn check_names(&self, json: &ExpectedJson) -> Result<(), EvidenceError> {
        let named = json.tensors.keys().flat_map(|names| names.split(", "));
        // `layers.N.*` is held to the config together with the stages.
        let is_name = |name: &&str| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            !name.starts_with("layers.N.") && name.bytes().all(is_plain)
        };
        match named.filter(is_name).find(|name| !self.names.contains(*name)) {
            None => Ok(()),
            Some(missing) => Err(self.missing(missing)),
        }
    }

    fn missing(&self, name: &str) -> EvidenceError {
        Problem::whole(format!("tensor {name:?} is missing")).in_file(&self.tensor_path).into()
    }

    /// Greedy decoding takes the argmax: the ids and the logits say the same.
    pub(super) fn check_greedy(
        &self,
        json: &ExpectedJson,
        full: &TeacherForced,
    ) -> Result<(), EvidenceError> {
        let chosen = &full.argmax[json.prompt_ids.len() - 1..];
        let differs = chosen.iter().zip(&json.greedy_ids).position(|(right, id)| right != id);
        differs.map_or(Ok(()), |step| {
            let expected = format!("{} at step {step}, the argmax of logits.f64", chosen[step]);
            Err(self.inconsistent("greedy_ids", expected, json.greedy_ids[step].to_string()))
        })
    }

    pub(super) fn check_ids(&self, json: &ExpectedJson) -> Result<(), EvidenceError> {
        let joined = [json.prompt_ids.as_slice(), &json.greedy_ids].concat();
        if json.prompt_ids.is_empty() || joined != json.full_ids {
            let got = format!("{} ids", json.full_ids.len());
            let expected = format!("prompt_ids + greedy_ids, {} ids", joined.len());
            return Err(self.inconsistent("full_ids", expected, got));
        }
        for ids in [Some(&json.full_ids), json.long_ids.as_ref()].into_iter().flatten() {
            if let Some(id) = ids.iter().find(|id| **id as usize >= self.vocabulary) {
                let expected = format!("ids below {}", self.vocabulary);
                return Err(self.inconsistent("full_ids", expected, id.to_string()));
            }
        }
        Ok(())
    }

    /// A tensor of exactly this shape.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<TensorValues, EvidenceError> {
        let tensor = self.tensors.remove(name).ok_or_else(|| self.missing(name))?;
        if tensor.shape != shape {
            let (expected, got) = (format!("shape {shape:?}"), format!("{:?}", tensor.shape));
            return Err(self.inconsistent(name, expected, got));
        }
        Ok(tensor)
    }

    /// Finite numbers of exactly this shape, in F64 where the name or the caller says so; and
    /// whether they are in less.
    fn take_real(
        &mut self,
        name: &str,
        shape: &[usize],
        exact: bool,
    ) -> Result<(Vec<f64>, bool), EvidenceError> {
        let TensorValues { values, dtype, is_f32, .. } = self.take(name, shape)?;
        if (exact || name.ends_with(".f64")) && dtype != Dtype::F64 {
            return Err(self.inconsistent(name, "F64".into(), format!("{dtype:?}")));
        }
        match values {
            StageValues::Real(values) if values.iter().all(|v| v.is_finite()) => {
                Ok((values, is_f32))
            }
            StageValues::Real(_) => {
                Err(self.inconsistent(name, "finite values".into(), "NaN or inf".into()))
            }
            StageValues::Ids(_) => {
                let expected = "floating-point values".into();
                Err(self.inconsistent(name, expected, format!("{dtype:?}")))
            }
        }
    }

    pub(super) fn teacher_forced(
        &mut self,
        name: &str,
        ids: &[u32],
        expected_argmax: &[u32],
    ) -> Result<TeacherForced, EvidenceError> {
        let (logits, _) = self.take_real(name, &[ids.len(), self.vocabulary], true)?;
        let own: Vec<u32> = logits.chunks(self.vocabulary).filter_map(argmax).collect();
        if own != expected_argmax {
            let expected = format!("the argmax of {name}");
            let got = format!("{} ids that differ from it", expected_argmax.len());
            return Err(self.inconsistent("argmax_per_position", expected, got));
        }
        Ok(TeacherForced { ids: ids.to_vec(), argmax: own, logits })
    }

    pub(super) fn long(
        &mut self,
        json: &ExpectedJson,
    ) -> Result<Option<TeacherForced>, EvidenceError> {
        match (&json.long_ids, &json.long_argmax_per_position) {
            (Some(ids), Some(argmax)) => {
                self.teacher_forced("long.logits.f64", ids, argmax).map(Some)
            }
            (None, None) => Ok(None),
            _ => {
                let got = "one of the two".to_owned();
                let expected = "long_ids and long_argmax_per_position, or neither".to_owned();
                Err(self.inconsistent("long_ids", expected, got))
            }
        }
    }

    /// The first tensor whose name starts with `prefix`, preferring `prefix` + `f64`.
    fn find(&self, prefix: &str) -> Option<String> {
        let exact = format!("{prefix}f64");
        if self.tensors.contains_key(&exact) {
            return Some(exact);
        }
        self.tensors.keys().find(|name| name.starts_with(prefix)).cloned()
    }

    pub(super) fn router(
        &mut self,
        json: &ExpectedJson,
        config: &RawConfig,
    ) -> Result<Option<RouterAnswers>, EvidenceError> {
        let names = (self.find("router_ids."), self.find("router_weights."), &json.moe_layers);
        let (ids_name, weights_name, layers) = match names {
            (Some(ids), Some(weights), Some(layers)) => (ids, weights, layers),
            // A list of layers alone promises nothing.
            (None, None, _) => return Ok(None),
            (ids, weights, _) => {
                let name = ids.or(weights).unwrap_or_default();
                let expected = "router_ids.*, router_weights.* and moe_layers together".to_owned();
                return Err(self.inconsistent(&name, expected, "not all three".to_owned()));
            }
        };
        let moe = config.first_k_dense_replace..config.num_hidden_layers;
        if !layers.windows(2).all(|pair| pair[0] < pair[1])
            || !layers.iter().all(|layer| moe.contains(layer))
        {
            let expected = format!("ascending layers within {moe:?}");
            return Err(self.inconsistent("moe_layers", expected, format!("{layers:?}")));
        }
        let top_k = config.num_experts_per_token;
        let shape = [layers.len(), json.full_ids.len(), top_k];
        let (weights, is_f32) = self.take_real(&weights_name, &shape, false)?;
        let ids = self.take_ids(&ids_name, &shape, config.num_experts)?;
        let rows = json.full_ids.len();
        Ok(Some(RouterAnswers { layers: layers.clone(), rows, top_k, ids, weights, is_f32 }))
    }

    pub(super) fn long_router_ids(
        &mut self,
        json: &ExpectedJson,
        config: &RawConfig,
        rows: usize,
    ) -> Result<Option<Vec<i32>>, EvidenceError> {
        let (Some(name), Some(layers)) = (self.find("long.router_ids."), &json.moe_layers) else {
            return Ok(None);
        };
        let shape = [layers.len(), rows, config.num_experts_per_token];
        self.take_ids(&name, &shape, config.num_experts).map(Some)
    }

    /// Expert ids of exactly this shape, ascending in each row.
    fn take_ids(
        &mut self,
        name: &str,
        shape: &[usize],
        experts: usize,
    ) -> Result<Vec<i32>, EvidenceError> {
        let TensorValues { values, dtype, .. } = self.take(name, shape)?;
        let StageValues::Ids(ids) = values else {
            return Err(self.inconsistent(name, "I32".into(), format!("{dtype:?}")));
        };
        let ascends = |row: &[i32]| row.windows(2).all(|pair| pair[0] < pair[1]);
        let top_k = shape.last().copied().unwrap_or(1).max(1);
        if let Some(row) = ids.chunks(top_k).position(|row| !ascends(row)) {
            let got = format!("{:?} in row {row}", &ids[row * top_k..(row + 1) * top_k]);
            return Err(self.inconsistent(name, "ids ascending in a row".into(), got));
        }
        let is_expert = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < experts);
        match ids.iter().find(|id| !is_expert(id)) {
            None => Ok(ids),
            Some(id) => {
                let expected = format!("experts below {experts}");
                Err(self.inconsistent(name, expected, id.to_string()))
            }
        }
    }

    pub(super) fn layer_outputs(
        &mut self,
        rows: usize,
        config: &RawConfig,
    ) -> Result<Option<LayerOutputs>, EvidenceError> {
        let Some(name) = self.find("layer_out.") else {
            return Ok(None);
        };
        let shape = [config.num_hidden_layers, rows, config.hidden_size];
        let (values, is_f32) = self.take_real(&name, &shape, false)?;
        Ok(Some(LayerOutputs { name, values, is_f32 }))
    }

    pub(super) fn stages(
        &mut self,
        stage_rows: Option<usize>,
        full_rows: usize,
        config: &RawConfig,
    ) -> Result<(BTreeMap<StageKey, StageTensor>, usize), EvidenceError> {
        let in_layers = |name: &&String| name.starts_with("layers.");
        if let Some(name) =
            self.names.iter().find(|name| in_layers(name) && StageKey::parse(name).is_none())
        {
            return Err(self.inconsistent(name, "the name of a stage".into(), "another".into()));
        }
        let parsed = self.tensors.keys().filter_map(|name| StageKey::parse(name));
        let keys: BTreeSet<StageKey> = parsed.collect();
        if keys.is_empty() && stage_rows.is_none() {
            return Ok((BTreeMap::new(), 0));
        }
        self.check_layers(&keys, config)?;
        let rows = stage_rows.unwrap_or(full_rows);
        if rows == 0 || rows > full_rows || keys.is_empty() {
            let expected = format!("1 to {full_rows} rows and stage tensors");
            let got = format!("{rows} rows, {} stage tensors", keys.len());
            return Err(self.inconsistent("stage_rows", expected, got));
        }
        let mut stages = BTreeMap::new();
        for key in keys {
            let (name, shape) = (key.to_string(), stage_shape(key.stage, rows, config));
            let values = if key.stage == Stage::RouterIds {
                StageValues::Ids(self.take_ids(&name, &shape, config.num_experts)?)
            } else {
                StageValues::Real(self.take_real(&name, &shape, true)?.0)
            };
            stages.insert(key, StageTensor { shape, values });
        }
        Ok((stages, rows))
    }

    /// A stage that one layer has, every layer of its kind has that has any: one that was renamed
    /// or lost does not leave the judgement unseen.
    fn check_layers(
        &self,
        keys: &BTreeSet<StageKey>,
        config: &RawConfig,
    ) -> Result<(), EvidenceError> {
        let kind = |layer: usize| {
            (config.kda_layers.contains(&(layer + 1)), layer < config.first_k_dense_replace)
        };
        let mut of_kind: BTreeMap<(bool, bool), BTreeSet<Stage>> = BTreeMap::new();
        let layers: BTreeSet<usize> = keys.iter().filter_map(|key| key.layer).collect();
        for key in keys {
            let Some(layer) = key.layer else { continue };
            if layer >= config.num_hidden_layers {
                let expected = format!("layers below {}", config.num_hidden_layers);
                return Err(self.inconsistent(&key.to_string(), expected, layer.to_string()));
            }
            of_kind.entry(kind(layer)).or_default().insert(key.stage);
        }
        let asked = layers.iter().flat_map(|&layer| {
            of_kind[&kind(layer)].iter().map(move |&stage| StageKey::layer(layer, stage))
        });
        match asked.into_iter().find(|key| !keys.contains(key)) {
            None => Ok(()),
            Some(missing) => Err(self.missing(&missing.to_string())),
        }
    }

    pub(super) fn other_logits(&mut self, rows: usize) -> BTreeMap<String, Vec<f64>> {
        let shape = [rows, self.vocabulary];
        let fits = |name: &&String, tensor: &TensorValues| {
            name.starts_with("logits.") && tensor.shape == shape
        };
        let names: Vec<String> = self
            .tensors
            .iter()
            .filter(|(name, tensor)| fits(name, tensor))
            .map(|(name, _)| name.clone())
            .collect();
        let mut found = BTreeMap::new();
        for name in names {
            if let Some(TensorValues { values: StageValues::Real(values), .. }) =
                self.tensors.remove(&name)
            {
                found.insert(name, values);
            }
        }
        found
    }
}
