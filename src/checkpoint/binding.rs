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
use std::fmt;
use std::path::{Path, PathBuf};

use rayon::prelude::*;
use thiserror::Error;

use super::dtype::Dtype;
use super::index::{INDEX_FILE, ShardIndex};
use super::names::{
    EXPERT_ROLES, LAYER_PREFIX, PROJECTOR_PREFIX, Role, TEXT_PREFIX, VISION_PREFIX,
};
use super::plan::{ExpectedTensor, tensor_count, visit_layer, visit_model};
use super::shape::{ModelShape, ShapeError};
use super::store::{Checkpoint, TensorId};
use crate::config::RawConfig;

/// How many names an error lists; it counts all of them.
const LISTED: usize = 24;

/// Most missing tensors that are worth naming: twice the released model. A config within its limits
/// can imply 25 billion tensors, which would take hours to look up.
const MAX_MISSING: u64 = 1_000_000;

/// One way a checkpoint does not fit its config.
#[derive(Debug, Error)]
pub enum BindError {
    /// A raw config that was not made by its reader.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// A config that implies far more tensors than there are.
    #[error(
        "{}: the config's layers and num_experts imply {expected} tensors, there are {got}; more \
         than {MAX_MISSING} missing ones are not looked for",
        path.display()
    )]
    TooManyExpected {
        /// The checkpoint or index.
        path: PathBuf,
        /// Tensors by the config.
        expected: u64,
        /// Names there are.
        got: u64,
    },
    /// Tensors that the config implies and the checkpoint does not have.
    #[error(
        "{}: {count} tensor(s) missing: {}{}", path.display(), listing(names, *count), hint(unknown)
    )]
    Missing {
        /// The checkpoint.
        path: PathBuf,
        /// Full names: all, or a selection that has every layer concerned at least once as long as
        /// there is room.
        names: Vec<String>,
        /// How many there are.
        count: u64,
        /// Tensors of the text model that have no place, as a hint; a selection.
        unknown: Vec<String>,
    },
    /// Another element type than the release's.
    #[error(
        "{}: tensor {tensor:?} ({role:?}): expected dtype {expected}, got {got}", path.display()
    )]
    WrongDtype {
        /// The shard.
        path: PathBuf,
        /// Full name.
        tensor: String,
        /// What it is in the model.
        role: Role,
        /// The release's type.
        expected: Dtype,
        /// The file's type.
        got: Dtype,
    },
    /// Another shape than the config implies.
    #[error(
        "{}: tensor {tensor:?} ({role:?}): expected shape {expected:?} by the config, got {got:?}",
        path.display()
    )]
    WrongShape {
        /// The shard.
        path: PathBuf,
        /// Full name.
        tensor: String,
        /// What it is in the model.
        role: Role,
        /// The config's shape.
        expected: Vec<usize>,
        /// The file's shape.
        got: Vec<usize>,
    },
    /// A residual tensor under its name, and another that is one by another spelling.
    #[error(
        "{}: tensor {tensor:?} is a second spelling of a residual norm or projection that stands \
         under its released name as well",
        path.display()
    )]
    BothSpellings {
        /// The checkpoint.
        path: PathBuf,
        /// The name that is not the released one.
        tensor: String,
    },
}

fn listing(names: &[String], count: u64) -> String {
    let shown: Vec<_> = names
        .iter()
        .map(|name| name.escape_debug().to_string())
        .collect();
    let mut text = shown.join(", ");
    if count > names.len() as u64 {
        text.push_str(&format!(", … ({} more)", count - names.len() as u64));
    }
    text
}

fn hint(unknown: &[String]) -> String {
    if unknown.is_empty() {
        return String::new();
    }
    format!(
        "; names there that are not known: {}",
        listing(unknown, unknown.len() as u64)
    )
}

/// Why a tensor has no place in the computation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum UnusedClass {
    /// The vision tower.
    VisionTower,
    /// The projector behind the vision tower.
    MmProjector,
    /// Residual weights of a layer that has no bank to mix: `self_attention_res_*` of layer 0.
    ResidualBeforeFirstBank,
    /// A layer index that the config does not have.
    LayerPastEnd,
    /// A name under a layer of the model that is none of its tensors.
    UnknownInLayer,
    /// Any other name.
    Unknown,
}

impl UnusedClass {
    /// Whether the release has such tensors; the others deserve a look.
    #[must_use]
    pub fn is_released(self) -> bool {
        matches!(
            self,
            Self::VisionTower | Self::MmProjector | Self::ResidualBeforeFirstBank
        )
    }
}

impl fmt::Display for UnusedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::VisionTower => "vision tower",
            Self::MmProjector => "vision projector",
            Self::ResidualBeforeFirstBank => "residual weights of layer 0, which has no bank yet",
            Self::LayerPastEnd => "layer past the end of the config",
            Self::UnknownInLayer => "unknown name in a layer",
            Self::Unknown => "unknown name",
        })
    }
}

/// A tensor without a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unused {
    /// Which tensor.
    pub id: TensorId,
    /// Why.
    pub class: UnusedClass,
}

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
        let unknown = binding
            .unused
            .iter()
            .filter(|unused| !unused.class.is_released());
        let unknown = unknown.take(LISTED / 3);
        Err(BindError::Missing {
            path: checkpoint.folder().to_owned(),
            names: select_missing(tables),
            count,
            unknown: unknown
                .map(|unused| checkpoint.info(unused.id).name.to_owned())
                .collect(),
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
        tables
            .flat_map(PlaceTable::found)
            .for_each(|id: TensorId| used[id.index()] = true);
        let layer_zero = zero_residuals(&shape);
        let mut unused = Vec::new();
        for info in checkpoint.tensors().filter(|info| !used[info.id.index()]) {
            let class = classify(info.name, &shape, &layer_zero);
            unused.push(Unused { id: info.id, class });
        }
        let binding = Self {
            shape,
            model,
            layers,
            unused,
        };
        binding.refuse_second_spelling(checkpoint)?;
        Ok(binding)
    }

    /// A residual tensor by another name is fine to report as long as its released name is not
    /// taken: then the missing name refuses the checkpoint. With both, which one is meant?
    fn refuse_second_spelling(&self, checkpoint: &Checkpoint) -> Result<(), BindError> {
        for unused in self
            .unused
            .iter()
            .filter(|unused| !unused.class.is_released())
        {
            let name = checkpoint.info(unused.id).name;
            let Some(part) = residual_spelling(name) else {
                continue;
            };
            let layer = layer_of(name);
            let table = layer.map_or(Some(&self.model), |layer| self.layers.get(layer));
            let taken = released_residuals(part, layer);
            if table.is_some_and(|table| taken.iter().all(|role| !table.lacks.contains(role))) {
                let (path, tensor) = (checkpoint.folder().to_owned(), name.to_owned());
                return Err(BindError::BothSpellings { path, tensor });
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
        let [
            w1_packed,
            w1_scale,
            w2_packed,
            w2_scale,
            w3_packed,
            w3_scale,
        ] = *ids;
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
        std::iter::once(&self.model)
            .chain(&self.layers)
            .map(|table| table.found().count())
            .sum()
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
        let experts: usize = self
            .layers
            .iter()
            .map(|table| table.experts.capacity())
            .sum();
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
/// [`BindError::Shape`], [`BindError::TooManyExpected`].
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
    tables
        .clone()
        .flat_map(PlaceTable::found)
        .for_each(|id| used[id.index()] = true);
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
        let path = path.to_owned();
        return Err(BindError::TooManyExpected {
            path,
            expected,
            got,
        });
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
        Role::ALL
            .iter()
            .filter_map(|&role| Some((role, self.role(role)?)))
    }

    fn found(&self) -> impl Iterator<Item = TensorId> {
        self.roles
            .iter()
            .chain(self.experts.iter().flatten())
            .filter_map(|id| *id)
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
        Self {
            find,
            near: 0,
            table: PlaceTable::new(),
            error: None,
        }
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
    let (role, tensor) = (expected.role, || expected.name.to_owned());
    let path = || checkpoint.shard_path(info.shard).to_owned();
    if info.dtype != expected.dtype {
        let (expected, got) = (expected.dtype, info.dtype);
        return Err(BindError::WrongDtype {
            path: path(),
            tensor: tensor(),
            role,
            expected,
            got,
        });
    }
    if info.shape != expected.shape {
        let (expected, got) = (expected.shape.to_vec(), info.shape.to_vec());
        return Err(BindError::WrongShape {
            path: path(),
            tensor: tensor(),
            role,
            expected,
            got,
        });
    }
    Ok(Some(info.id))
}

/// Missing names for a message: a few of every table concerned, as long as there is room.
fn select_missing<'a>(tables: impl Iterator<Item = &'a PlaceTable> + Clone) -> Vec<String> {
    let concerned = tables
        .clone()
        .filter(|table| table.missing_count > 0)
        .count();
    let each = (LISTED / concerned.max(1)).max(1);
    let names = tables.flat_map(|table| table.missing.iter().take(each));
    names.take(LISTED).cloned().collect()
}

/// Names of residual weights that no mix ever reads.
fn zero_residuals(shape: &ModelShape) -> Vec<String> {
    let layers = shape.layers.iter().enumerate();
    let without = layers
        .filter(|(_, layer)| layer.attention_banks == 0)
        .map(|(index, _)| index);
    let roles = [Role::AttentionResNorm, Role::AttentionResProj];
    without
        .flat_map(|layer| roles.map(|role| role.name(layer, 0)))
        .collect()
}

fn classify(name: &str, shape: &ModelShape, zero_residuals: &[String]) -> UnusedClass {
    if name.starts_with(VISION_PREFIX) {
        return UnusedClass::VisionTower;
    }
    if name.starts_with(PROJECTOR_PREFIX) {
        return UnusedClass::MmProjector;
    }
    if zero_residuals.iter().any(|known| known == name) {
        return UnusedClass::ResidualBeforeFirstBank;
    }
    match layer_of(name) {
        Some(layer) if layer >= shape.layers.len() => UnusedClass::LayerPastEnd,
        Some(_) => UnusedClass::UnknownInLayer,
        None => UnusedClass::Unknown,
    }
}

/// The layer that a name belongs to by its prefix.
fn layer_of(name: &str) -> Option<usize> {
    name.strip_prefix(LAYER_PREFIX)?
        .split_once('.')?
        .0
        .parse()
        .ok()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ResidualPart {
    Norm,
    Proj,
}

/// The released names that another spelling of a residual tensor could stand for.
fn released_residuals(part: ResidualPart, layer: Option<usize>) -> &'static [Role] {
    match (part, layer) {
        (ResidualPart::Norm, None) => &[Role::OutputResNorm],
        (ResidualPart::Proj, None) => &[Role::OutputResProj],
        (ResidualPart::Norm, Some(_)) => &[Role::AttentionResNorm, Role::MlpResNorm],
        (ResidualPart::Proj, Some(_)) => &[Role::AttentionResProj, Role::MlpResProj],
    }
}

/// Whether a name of the text model looks like a residual norm or projection.
fn residual_spelling(name: &str) -> Option<ResidualPart> {
    let words: Vec<_> = name.strip_prefix(TEXT_PREFIX)?.split(['.', '_']).collect();
    if !words
        .iter()
        .any(|word| matches!(*word, "res" | "residual" | "residuals"))
    {
        return None;
    }
    let last = words.iter().rev().find(|word| **word != "weight")?;
    match *last {
        "norm" | "layernorm" => Some(ResidualPart::Norm),
        "proj" | "projection" | "query" => Some(ResidualPart::Proj),
        _ => None,
    }
}

fn count_classes(classes: impl Iterator<Item = UnusedClass>) -> BTreeMap<UnusedClass, usize> {
    let mut counts = BTreeMap::new();
    for class in classes {
        *counts.entry(class).or_insert(0) += 1;
    }
    counts
}
