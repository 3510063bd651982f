//! Wrong variants of the engine: each is one plausible mistake, and a gate must turn red for it.
//!
//! The engine has two seams, its table of kernels and its sources; a wrong variant is the engine
//! itself on other kernels, or with something between it and what it loads, fetches and carries.
//! Mistakes in a clause of the model are planted once, in the f64 reference, and judged at both
//! precisions; this module has the mistakes that only an engine can make: its arithmetic (A1…A12),
//! and right arithmetic on operands from the wrong place.
//!
//! Not every mutant can be seen in logits. Those of lane order, folds and accumulators change
//! nothing but the f64 sum before its rounding; a few need data that the tiny model lacks (a
//! subnormal weight). Their clause's kernel gate has that data.

use std::sync::Arc;

use k3_checkpoint::Role;
use k3_engine::kernels::matrix::SharedBytes;
use k3_engine::kernels::table::Kernels;
use k3_engine::model::{
    Engine, EngineError, EngineOptions, ExpertSource, LayerWeights, ResidentExperts,
    ResidentLayers, Shape, State, TensorSpec, WeightSource, Weights,
};

mod formats;
mod numbers;
pub mod perturbed;
mod placement;
mod rows;
mod steps;

/// One wrong variant.
#[derive(Debug, Clone, Copy)]
pub struct EngineMutant {
    /// Unique name, clause first: `a8-f32-sums`.
    pub id: &'static str,
    /// Clauses it breaks.
    pub clauses: &'static [&'static str],
    /// What is wrong, in a sentence.
    pub what: &'static str,
    mistake: Mistake,
}

/// Where the mistake is.
#[derive(Debug, Clone, Copy)]
enum Mistake {
    /// In the kernels.
    Kernels(fn(Kernels) -> Kernels),
    /// In the shape.
    Shape(fn(&mut Shape)),
    /// In the loader, which makes zeros of the tensors of a role instead of reading them.
    Skipped(Role),
    /// Between the engine and its experts.
    Experts(Wrap),
    /// In the carried state; made anew for every engine, as some keep what they should not.
    Carried(fn() -> Arc<dyn Carried>),
}

impl EngineMutant {
    /// The engine with this mistake; each call makes a fresh one.
    #[must_use]
    pub fn engine(&self) -> WrongEngine {
        let right = WrongEngine::default();
        match self.mistake {
            Mistake::Kernels(change) => {
                WrongEngine { kernels: change(Kernels::fastest()), ..right }
            }
            Mistake::Shape(change) => WrongEngine { shape: Some(change), ..right },
            Mistake::Skipped(role) => WrongEngine { skipped: Some(role), ..right },
            Mistake::Experts(wrap) => WrongEngine { experts: Some(wrap), ..right },
            Mistake::Carried(make) => WrongEngine { carried: Some(make()), ..right },
        }
    }
}

/// What an engine is made of, all in memory, before it is made.
#[derive(Debug)]
pub struct Loaded {
    /// Widths and layers.
    pub shape: Shape,
    /// The layers.
    pub layers: Vec<LayerWeights>,
    /// Embedding, head and closing stages.
    pub weights: Weights,
    /// The routed experts.
    pub experts: ResidentExperts,
}

/// Something between the calls of a sequence and the state that it carries.
pub trait Carried: Send + Sync + std::fmt::Debug {
    /// Before a chunk.
    fn before(&self, _state: &mut State) {}
    /// After a chunk.
    fn after(&self, _state: &mut State) {}
}

/// Changes what was loaded.
pub type Change = Arc<dyn Fn(&mut Loaded) + Send + Sync>;

/// Puts something between an engine and its experts.
pub type Wrap = fn(Box<dyn ExpertSource>) -> Box<dyn ExpertSource>;

/// An engine with something wrong in it; by default nothing is.
#[derive(Clone)]
pub struct WrongEngine {
    /// Its kernels.
    pub kernels: Kernels,
    /// Changes the shape after what it says has been loaded.
    pub shape: Option<fn(&mut Shape)>,
    /// Comes out as zeros instead of being loaded.
    pub skipped: Option<Role>,
    /// Changes what was loaded.
    pub loaded: Option<Change>,
    /// Comes between it and its experts.
    pub experts: Option<Wrap>,
    /// Comes between its calls.
    pub carried: Option<Arc<dyn Carried>>,
}

impl Default for WrongEngine {
    fn default() -> Self {
        let kernels = Kernels::fastest();
        Self { kernels, shape: None, skipped: None, loaded: None, experts: None, carried: None }
    }
}

impl std::fmt::Debug for WrongEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrongEngine")
    }
}

impl WrongEngine {
    /// The engine, all weights in memory.
    ///
    /// # Errors
    /// As for the right engine; for some mutants that is how they show.
    pub fn open(
        &self,
        shape: Shape,
        source: &dyn WeightSource,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let source = &Skipping { source, role: self.skipped };
        let layers = 0..shape.layers.len();
        let layers = layers.map(|layer| LayerWeights::load(&shape, source, layer));
        let mut loaded = Loaded {
            layers: layers.collect::<Result<_, _>>()?,
            weights: Weights::load(&shape, source)?,
            experts: ResidentExperts::load(&shape, source)?,
            shape,
        };
        if let Some(change) = &self.loaded {
            change(&mut loaded);
        }
        let Loaded { shape, layers, weights, experts } = loaded;
        let layers = ResidentLayers(layers.into_iter().map(Arc::new).collect());
        let sources = (Box::new(layers) as Box<_>, self.experts_of(Box::new(experts)));
        Engine::new(self.kernels, self.shape_of(shape), weights, sources, options)
    }

    /// The shape that the engine has in place of the right one.
    #[must_use]
    pub fn shape_of(&self, mut right: Shape) -> Shape {
        if let Some(change) = self.shape {
            change(&mut right);
        }
        right
    }

    /// The experts that the engine has in place of the right ones.
    #[must_use]
    pub fn experts_of(&self, right: Box<dyn ExpertSource>) -> Box<dyn ExpertSource> {
        match self.experts {
            Some(wrap) => wrap(right),
            None => right,
        }
    }
}

/// A source that gives zeros for the tensors of a role.
struct Skipping<'a> {
    source: &'a dyn WeightSource,
    role: Option<Role>,
}

impl WeightSource for Skipping<'_> {
    fn tensor(&self, spec: &TensorSpec) -> Result<SharedBytes, EngineError> {
        let template = self.role.map_or("", Role::template);
        let (before, after) = template.split_once("{layer}").unwrap_or((template, template));
        let skipped = spec.name.starts_with(before) && spec.name.ends_with(after);
        if self.role.is_none() || !skipped {
            return self.source.tensor(spec);
        }
        let bytes = spec.shape.iter().product::<usize>() as u64 * spec.dtype.bits() / 8;
        SharedBytes::filled(bytes as usize, |_| Ok(()))
    }
}

/// Every wrong variant of the engine, in a fixed order.
#[must_use]
pub fn mutants() -> Vec<EngineMutant> {
    [formats::list(), rows::list(), numbers::list(), steps::list(), placement::list()].concat()
}
