//! Binding: every tensor of a checkpoint gets its place in the model, or is listed as unused.
//!
//! The config says which tensors there must be, with dtype and shape (see [`super::plan`]); each
//! is looked up by its full name. Nothing is skipped in silence: what is missing is an error with
//! full names, another dtype or shape than the config implies is an error, and what the model does
//! not use is listed by class. Names are matched exactly: an older spelling of a residual tensor is
//! an unknown name beside a missing one, and both spellings at once are refused.
//!
//! Not here: values. (A padded tail of `A_log` that is not zero shows when it is loaded.)

use std::collections::BTreeMap;
use std::path::Path;

use rayon::prelude::*;

use super::Problem;
use super::bind_error::BindError;
use super::index::{INDEX_FILE, ShardIndex};
use super::names::{EXPERT_ROLES, Role};
use super::plan::{ExpectedTensor, tensor_count, visit_layer, visit_model};
use super::shape::ModelShape;
use super::store::{Checkpoint, TensorId};
use super::unused::{
    Unused, UnusedClass, classify, count_classes, layer_of, released_residuals, residual_spelling,
    zero_residuals,
};
use k3_core::config::RawConfig;

/// How many names an error lists; it counts all of them.
const LISTED: usize = 24;

/// Most missing tensors that are worth naming: twice the released model. A config within its limits
/// can imply 25 billion tensors, which would take hours to look up.
const MAX_MISSING: u64 = 1_000_000;

/// The six tensors of one routed expert.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTensors {
    /// w1, the gate: codes \[I, L/2\].
    pub w1_packed: TensorId,
    /// w1: scales \[I, L/32\].
    pub w1_scale: TensorId,
    /// w2, down: codes \[L, I/2\].
    pub w2_packed: TensorId,
    /// w2: scales \[L, I/32\].
    pub w2_scale: TensorId,
    /// w3, up: codes \[I, L/2\].
    pub w3_packed: TensorId,
    /// w3: scales \[I, L/32\].
    pub w3_scale: TensorId,
}

impl ExpertTensors {
    /// In the order of [`EXPERT_ROLES`].
    #[must_use]
    pub fn in_order(&self) -> [TensorId; 6] {
        [
            self.w1_packed,
            self.w1_scale,
            self.w2_packed,
            self.w2_scale,
            self.w3_packed,
            self.w3_scale,
        ]
    }
}

/// Where every tensor of the model lies.
#[derive(Debug)]
pub struct Binding {
    shape: ModelShape,
    model: PlaceTable,
    layers: Vec<PlaceTable>,
    unused: Vec<Unused>,
}

impl Binding {
    /// Binds a complete checkpoint.
    ///
    /// # Errors
    /// Every variant of [`BindError`].
    pub fn bind(checkpoint: &Checkpoint, config: &RawConfig) -> Result<Self, BindError> {
        let binding = Self::bind_partial(checkpoint, config)?;
        let tables = std::iter::once(&binding.model).chain(&binding.layers);
        let count: u64 = tables.clone().map(|table| table.missing_count).sum();
        if count == 0 {
            return Ok(binding);
        }
        let unknown = binding.unused.iter().filter(|unused| !unused.class.is_released());
        let unknown = unknown.take(LISTED / 3);
        Err(BindError::Missing {
            path: checkpoint.folder().to_owned(),
            names: select_missing(tables),
            count,
            unknown: unknown.map(|unused| checkpoint.info(unused.id).name.to_owned()).collect(),
        })
    }

    /// Binds what there is; see [`Self::missing_in_layer`].
    ///
    /// # Errors
    /// Every variant of [`BindError`] but `Missing`.
    pub fn bind_partial(checkpoint: &Checkpoint, config: &RawConfig) -> Result<Self, BindError> {
        let shape = ModelShape::derive(config)?;
        refuse_absurd_plan(&shape, checkpoint.name_count(), checkpoint.folder())?;
        let find = |expected: &ExpectedTensor<'_>, near: &mut u32| {
            find_checked(checkpoint, expected, near)
        };
        let (model, layers) = place_all(&shape, &find)?;
        let mut used = vec![false; checkpoint.len()];
        let tables = std::iter::once(&model).chain(&layers);
        tables.flat_map(PlaceTable::found).for_each(|id: TensorId| used[id.index()] = true);
        let layer_zero = zero_residuals(&shape);
        let mut unused = Vec::new();
        for info in checkpoint.tensors().filter(|info| !used[info.id.index()]) {
            let class = classify(info.name, &shape, &layer_zero);
            unused.push(Unused { id: info.id, class });
        }
        let binding = Self { shape, model, layers, unused };
        binding.refuse_second_spelling(checkpoint)?;
        Ok(binding)
    }

    /// A residual tensor by another name is fine to report as long as its released name is not
    /// taken: then the missing name refuses the checkpoint. With both, which one is meant?
    fn refuse_second_spelling(&self, checkpoint: &Checkpoint) -> Result<(), BindError> {
        for unused in self.unused.iter().filter(|unused| !unused.class.is_released()) {
            let name = checkpoint.info(unused.id).name;
            let Some(part) = residual_spelling(name) else {
                continue;
            };
            let layer = layer_of(name);
            let table = layer.map_or(Some(&self.model), |layer| self.layers.get(layer));
            let taken = released_residuals(part, layer);
            if table.is_some_and(|table| taken.iter().all(|role| !table.lacks.contains(role))) {
                let what = "is a second spelling of a residual norm or projection that has its \
                            released name as well";
                return Err(Problem::in_tensor(name, what).in_file(checkpoint.folder()).into());
            }
        }
        Ok(())
    }

    /// What the config implies.
    #[must_use]
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// A tensor of the whole model; `None` for roles of layers, and where it is missing in a
    /// partial binding.
    #[must_use]
    pub fn model_tensor(&self, role: Role) -> Option<TensorId> {
        self.model.role(role)
    }

    /// A trunk tensor of layer `layer` (zero-based); `None` for roles that the layer's kind does
    /// not have, for the unused residual weights of layer 0, and where it is missing in a partial
    /// binding.
    #[must_use]
    pub fn layer_tensor(&self, layer: usize, role: Role) -> Option<TensorId> {
        self.layers.get(layer)?.role(role)
    }

    /// The bound trunk tensors of a layer (zero-based), in the order of [`Role::ALL`].
    pub fn layer_tensors(&self, layer: usize) -> impl Iterator<Item = (Role, TensorId)> {
        self.layers[layer].bound_roles()
    }

    /// The bound tensors of the whole model, in the order of [`Role::ALL`].
    pub fn model_tensors(&self) -> impl Iterator<Item = (Role, TensorId)> {
        self.model.bound_roles()
    }

    /// The six tensors of a routed expert; `None` in dense layers, and where one of them is
    /// missing in a partial binding.
    #[must_use]
    pub fn expert(&self, layer: usize, expert: usize) -> Option<ExpertTensors> {
        let ids = self.layers.get(layer)?.experts.get(expert)?;
        let [w1_packed, w1_scale, w2_packed, w2_scale, w3_packed, w3_scale] = *ids;
        Some(ExpertTensors {
            w1_packed: w1_packed?,
            w1_scale: w1_scale?,
            w2_packed: w2_packed?,
            w2_scale: w2_scale?,
            w3_packed: w3_packed?,
            w3_scale: w3_scale?,
        })
    }

    /// Tensors without a place, by shard, then offset.
    #[must_use]
    pub fn unused(&self) -> &[Unused] {
        &self.unused
    }

    /// How many tensors each class of unused ones has.
    #[must_use]
    pub fn unused_counts(&self) -> BTreeMap<UnusedClass, usize> {
        count_classes(self.unused.iter().map(|unused| unused.class))
    }

    /// How many tensors have a place.
    #[must_use]
    pub fn bound_count(&self) -> usize {
        std::iter::once(&self.model).chain(&self.layers).map(|table| table.found().count()).sum()
    }

    /// How many tensors of a layer (zero-based) are missing; above 0 in partial bindings only.
    #[must_use]
    pub fn missing_in_layer(&self, layer: usize) -> u64 {
        self.layers[layer].missing_count
    }

    /// Names of missing tensors of a layer, a selection where there are many.
    #[must_use]
    pub fn missing_names(&self, layer: usize) -> &[String] {
        &self.layers[layer].missing
    }

    /// How many tensors outside the layers are missing; above 0 in partial bindings only.
    #[must_use]
    pub fn missing_in_model(&self) -> u64 {
        self.model.missing_count
    }

    /// Bytes this table holds in memory, for a memory plan.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let experts: usize = self.layers.iter().map(|table| table.experts.capacity()).sum();
        experts * size_of::<[Option<TensorId>; 6]>()
            + self.layers.capacity() * size_of::<PlaceTable>()
            + self.unused.capacity() * size_of::<Unused>()
    }
}

/// What binding by names alone (an index without shards) says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameBinding {
    /// Names the config implies.
    pub expected: u64,
    /// How many of them the index has.
    pub bound: u64,
    /// Names that are missing: all, or a selection.
    pub missing: Vec<String>,
    /// How many are missing.
    pub missing_count: u64,
    /// Names without a place, by class.
    pub unused: BTreeMap<UnusedClass, usize>,
    /// Those of them that the release does not have: a selection.
    pub unknown: Vec<String>,
}

/// Compares the names of an index with those a config implies.
///
/// # Errors
/// [`BindError::Shape`], [`BindError::File`].
pub fn bind_names(index: &ShardIndex, config: &RawConfig) -> Result<NameBinding, BindError> {
    let shape = ModelShape::derive(config)?;
    refuse_absurd_plan(&shape, index.names.len(), Path::new(INDEX_FILE))?;
    let find = |expected: &ExpectedTensor<'_>, near: &mut u32| {
        let id = index.names.find_near(expected.name, *near);
        *near = id.unwrap_or(*near);
        Ok(id.map(|id| TensorId::new(id as usize)))
    };
    let (model, layers) = place_all(&shape, &find)?;
    let tables = std::iter::once(&model).chain(&layers);
    let mut used = vec![false; index.names.len()];
    tables.clone().flat_map(PlaceTable::found).for_each(|id| used[id.index()] = true);
    let bound = used.iter().filter(|used| **used).count() as u64;
    let layer_zero = zero_residuals(&shape);
    let mut classes = Vec::new();
    let mut unknown = Vec::new();
    for (id, _) in used.iter().enumerate().filter(|(_, used)| !**used) {
        let name = index.names.name(id as u32);
        let class = classify(name, &shape, &layer_zero);
        if !class.is_released() && unknown.len() < LISTED {
            unknown.push(name.to_owned());
        }
        classes.push(class);
    }
    Ok(NameBinding {
        expected: tensor_count(&shape),
        bound,
        missing: select_missing(tables.clone()),
        missing_count: tables.map(|table| table.missing_count).sum(),
        unused: count_classes(classes.into_iter()),
        unknown,
    })
}

fn refuse_absurd_plan(shape: &ModelShape, names: usize, path: &Path) -> Result<(), BindError> {
    let (expected, got) = (tensor_count(shape), names as u64);
    if expected > got + MAX_MISSING {
        return Err(Problem::whole(format!(
            "the config's layers and num_experts imply {expected} tensors, there are {got}; more \
             than {MAX_MISSING} missing ones are not looked for"
        ))
        .in_file(path)
        .into());
    }
    Ok(())
}

/// What was found for the model or for one layer.
#[derive(Debug)]
struct PlaceTable {
    /// By role.
    roles: [Option<TensorId>; Role::COUNT],
    /// By expert, in the order of [`EXPERT_ROLES`].
    experts: Vec<[Option<TensorId>; 6]>,
    /// Roles that were not found.
    lacks: Vec<Role>,
    /// The first names that were not found.
    missing: Vec<String>,
    missing_count: u64,
}

impl PlaceTable {
    fn new() -> Self {
        Self {
            roles: [None; Role::COUNT],
            experts: Vec::new(),
            lacks: Vec::new(),
            missing: Vec::new(),
            missing_count: 0,
        }
    }

    fn role(&self, role: Role) -> Option<TensorId> {
        self.roles[role as usize]
    }

    fn put(&mut self, expected: &ExpectedTensor<'_>, id: Option<TensorId>) {
        if id.is_none() {
            self.missing_count += 1;
            if self.missing.len() < LISTED {
                self.missing.push(expected.name.to_owned());
            }
        }
        let Some(expert) = expected.expert else {
            self.lacks.extend(id.is_none().then_some(expected.role));
            self.roles[expected.role as usize] = id;
            return;
        };
        if expert == self.experts.len() {
            self.experts.push([None; 6]);
        }
        if let Some(place) = EXPERT_ROLES.iter().position(|role| *role == expected.role) {
            self.experts[expert][place] = id;
        }
    }

    fn bound_roles(&self) -> impl Iterator<Item = (Role, TensorId)> {
        Role::ALL.iter().filter_map(|&role| Some((role, self.role(role)?)))
    }

    fn found(&self) -> impl Iterator<Item = TensorId> {
        self.roles.iter().chain(self.experts.iter().flatten()).filter_map(|id| *id)
    }
}

type Found = Result<Option<TensorId>, BindError>;

/// Looks every expected tensor up, layers in parallel; the first error in the model's order wins.
fn place_all(
    shape: &ModelShape,
    find: &(impl Fn(&ExpectedTensor<'_>, &mut u32) -> Found + Sync),
) -> Result<(PlaceTable, Vec<PlaceTable>), BindError> {
    let mut model = Placing::new(find);
    visit_model(shape, |expected| model.place(&expected));
    let model = model.finish()?;
    let layers: Vec<_> = (0..shape.layers.len())
        .into_par_iter()
        .map(|layer| {
            let mut placing = Placing::new(find);
            visit_layer(shape, layer, |expected| placing.place(&expected));
            placing.finish()
        })
        .collect();
    let mut layers = layers.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (table, layer) in layers.iter_mut().zip(&shape.layers) {
        if layer.attention_banks == 0 {
            // Their shapes were checked; that no computation can reach them is the point.
            table.roles[Role::AttentionResNorm as usize] = None;
            table.roles[Role::AttentionResProj as usize] = None;
        }
    }
    Ok((model, layers))
}

/// Fills one table; stops at the first error.
struct Placing<'a, F> {
    find: &'a F,
    /// Number of the name found last: the next one is often its neighbour.
    near: u32,
    table: PlaceTable,
    error: Option<BindError>,
}

impl<'a, F: Fn(&ExpectedTensor<'_>, &mut u32) -> Found> Placing<'a, F> {
    fn new(find: &'a F) -> Self {
        Self { find, near: 0, table: PlaceTable::new(), error: None }
    }

    fn place(&mut self, expected: &ExpectedTensor<'_>) {
        if self.error.is_some() {
            return;
        }
        match (self.find)(expected, &mut self.near) {
            Ok(id) => self.table.put(expected, id),
            Err(error) => self.error = Some(error),
        }
    }

    fn finish(self) -> Result<PlaceTable, BindError> {
        self.error.map_or(Ok(self.table), Err)
    }
}

/// The tensor of that name, its dtype and shape checked.
fn find_checked(checkpoint: &Checkpoint, expected: &ExpectedTensor<'_>, near: &mut u32) -> Found {
    let Some(id) = checkpoint.find_near(expected.name, near) else {
        return Ok(None);
    };
    let info = checkpoint.info(id);
    let wrong = |what: String| {
        let what = format!("({:?}) expected {what}", expected.role);
        let path = checkpoint.shard_path(info.shard);
        Err(Problem::in_tensor(expected.name, what).in_file(path).into())
    };
    if info.dtype != expected.dtype {
        return wrong(format!("dtype {}, got {}", expected.dtype, info.dtype));
    }
    if info.shape != expected.shape {
        let (shape, got) = (expected.shape, info.shape);
        return wrong(format!("shape {shape:?} by the config, got {got:?}"));
    }
    Ok(Some(info.id))
}

/// Missing names for a message: a few of every table concerned, as long as there is room.
fn select_missing<'a>(tables: impl Iterator<Item = &'a PlaceTable> + Clone) -> Vec<String> {
    let concerned = tables.clone().filter(|table| table.missing_count > 0).count();
    let each = (LISTED / concerned.max(1)).max(1);
    let names = tables.flat_map(|table| table.missing.iter().take(each));
    names.take(LISTED).cloned().collect()
}
