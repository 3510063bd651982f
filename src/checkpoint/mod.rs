//! The engine's checkpoint reader: strict headers, an index over all shards, binding by name.
