//! Memory that files are read into: buffers of whole 4096-byte blocks, and pools of them.
//!
//! A buffer belongs to exactly one owner: to the pool, to the read that fills it, or to the weights
//! it holds. The last handle that is dropped gives it back. So a buffer in use can neither be read
//! into nor handed out again; the types do not allow it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

/// Bytes of a block. Direct reads want address, offset and length in multiples of the device's
/// block, which is 512 or 4096; 4096 serves both.
pub const BLOCK_BYTES: usize = 4096;

/// The smallest multiple of [`BLOCK_BYTES`] that is not below `bytes`.
#[must_use]
pub fn whole_blocks(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Whole blocks of memory at an address that is a multiple of 4096.
pub struct Buffer(Vec<Block>);

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}

impl Buffer {
    /// At least `bytes` zeros. Every page is written, so that the memory is taken now, where a
    /// machine that has not got it says so, and not in the middle of a run.
    #[must_use]
    pub fn zeroed(bytes: usize) -> Self {
        Self(vec![Block::zeroed(); bytes.div_ceil(BLOCK_BYTES)])
    }

    /// Bytes; a multiple of [`BLOCK_BYTES`].
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len() * BLOCK_BYTES
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }

    /// The bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

/// Buffers of one size that come back when their last user lets go.
#[derive(Debug, Default)]
pub struct Pool {
    state: Mutex<PoolState>,
    returned: Condvar,
}

#[derive(Debug, Default)]
struct PoolState {
    free: Vec<Buffer>,
    closed: bool,
}

impl Pool {
    /// `count` buffers of at least `bytes` bytes.
    #[must_use]
    pub fn new(count: usize, bytes: usize) -> Arc<Self> {
        let free = (0..count).map(|_| Buffer::zeroed(bytes)).collect();
        let state = PoolState { free, closed: false };
        Arc::new(Self { state: Mutex::new(state), returned: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer, as soon as there is one; `None` once the pool is closed.
    pub fn take(&self) -> Option<Buffer> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            if let Some(buffer) = state.free.pop() {
                return Some(buffer);
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts a buffer back.
    pub fn put(&self, buffer: Buffer) {
        self.lock().free.push(buffer);
        self.returned.notify_all();
    }

    /// Current and later waits for a buffer get none.
    pub fn close(&self) {
        self.lock().closed = true;
        self.returned.notify_all();
    }
}

/// A filled buffer. Weights in it keep it alive; then it returns to its pool, if it has one.
#[derive(Debug)]
pub struct Slot {
    buffer: Option<Buffer>,
    home: Option<Arc<Pool>>,
}

impl Slot {
    /// A buffer of a pool.
    #[must_use]
    pub fn pooled(buffer: Buffer, home: &Arc<Pool>) -> Self {
        Self { buffer: Some(buffer), home: Some(Arc::clone(home)) }
    }

    /// A buffer that is freed when its last user drops it.
    #[must_use]
    pub fn owned(buffer: Buffer) -> Self {
        Self { buffer: Some(buffer), home: None }
    }
}

impl AsRef<[u8]> for Slot {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], Buffer::bytes)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let (Some(buffer), Some(home)) = (self.buffer.take(), &self.home) {
            home.put(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E02: an address that is aligned by luck on one machine is not on another.
    #[test]
    fn e02_buffers_are_whole_blocks_at_block_addresses() {
        for bytes in [1, 4095, 4096, 4097, 17_547_264] {
            let buffer = Buffer::zeroed(bytes);
            assert_eq!(buffer.bytes().as_ptr().align_offset(BLOCK_BYTES), 0);
            assert!(buffer.len() >= bytes && buffer.len() < bytes + BLOCK_BYTES);
            assert_eq!(buffer.len() % BLOCK_BYTES, 0);
        }
    }

    /// A buffer that came back before its last user was done would be overwritten under it.
    #[test]
    fn a_buffer_comes_back_with_its_last_handle_only() {
        let pool = Pool::new(1, 10);
        let slot = Arc::new(Slot::pooled(pool.take().unwrap(), &pool));
        let second = Arc::clone(&slot);
        drop(slot);
        assert_eq!(pool.lock().free.len(), 0);
        drop(second);
        assert_eq!(pool.lock().free.len(), 1);
    }
}
