//! What is on the heap, as the allocator sees it.

/// Bytes that an allocation takes: glibc's malloc puts a word in front of it, rounds up to 16, and takes 32 at least.
/// Other allocators are near enough. Nothing is allocated for nothing.
pub(crate) const fn allocated(bytes: usize) -> usize {
    match (bytes, (bytes + size_of::<usize>()).next_multiple_of(16)) {
        (0, _) => 0,
        (_, small) if small < 32 => 32,
        (_, rounded) => rounded,
    }
}

/// What a `Box` of this takes, without what is behind pointers in it.
pub(crate) const fn boxed<T: ?Sized>(value: &T) -> usize {
    allocated(size_of_val(value))
}

/// What an `Arc` of a `T` takes: its two counts stand in front.
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
