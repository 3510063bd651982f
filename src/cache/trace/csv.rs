//! Export for libCacheSim: one line per request.
//!
//! Columns: `time,obj_id,obj_size,layer,expert,position`. libCacheSim reads it with
//! `-t "time-col=1, obj-id-col=2, obj-size-col=3, has-header=true, delimiter=,"
//! --ignore-obj-size true` and a cache size in objects. Time is the request number: the trace has
//! no clock. The object id is layer × experts per layer + expert.

use std::io::Write;

use super::Trace;

/// Writes the requests in the order they have in `trace`.
pub fn write(trace: &Trace, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "time,obj_id,obj_size,layer,expert,position")?;
    let size = trace.shape.expert_bytes;
    for demand in &trace.demands {
        for (place, &expert) in trace.experts(demand).iter().enumerate() {
            let key = trace.shape.key(expert);
            let time = demand.first as usize + place;
            let position = demand.position;
            writeln!(out, "{time},{expert},{size},{},{},{position}", key.layer, key.expert)?;
        }
    }
    Ok(())
}
