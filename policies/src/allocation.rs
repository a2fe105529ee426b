//! Heap use, as the allocator sees it.

/// Bytes that an allocation takes. glibc's malloc adds a word in front, rounds up to 16, and takes at least 32. Other
/// allocators are close enough. No allocation is needed for zero bytes.
pub(crate) const fn allocated(bytes: usize) -> usize {
    match (bytes, (bytes + size_of::<usize>()).next_multiple_of(16)) {
        (0, _) => 0,
        (_, small) if small < 32 => 32,
        (_, rounded) => rounded,
    }
}

/// Size of a `Box` of this value, without what its own pointers lead to.
pub(crate) const fn boxed<T: ?Sized>(value: &T) -> usize {
    allocated(size_of_val(value))
}

/// Size of an `Arc` of a `T`, including its two counts.
pub(crate) const fn counted<T>() -> usize {
    allocated(2 * size_of::<usize>() + size_of::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rounded_as_malloc_does() {
        for (bytes, block) in [(0, 0), (1, 32), (24, 32), (25, 48), (40, 48), (41, 64)] {
            assert_eq!(allocated(bytes), block, "{bytes}");
        }
        assert_eq!(boxed(&[0_u64; 5]), 48);
        assert_eq!(boxed(""), 0);
        assert_eq!(counted::<u64>(), 32);
    }
}
