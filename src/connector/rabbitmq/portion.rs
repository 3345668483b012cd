/// Takes items until there are `max_items`, or `max_bytes` in all, which the last one may exceed.
pub fn portion<T>(
    items: &mut impl Iterator<Item = T>,
    max_items: usize,
    max_bytes: usize,
    bytes_of: impl Fn(&T) -> usize,
) -> Vec<T> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while taken.len() < max_items
        && bytes < max_bytes
        && let Some(item) = items.next()
    {
        bytes += bytes_of(&item);
        taken.push(item);
    }
    taken
}

#[test]
fn a_portion_ends_at_its_number_of_items_or_at_its_bytes_and_leaves_the_rest() {
    for (sizes, expected) in [
        (vec![], 0),
        (vec![1, 1], 2),
        (vec![1, 1, 1, 1], 3),
        // Full with exactly as many bytes.
        (vec![4, 6, 1], 2),
        (vec![4, 5, 9, 1], 3),
        (vec![99, 1], 1),
        (vec![0, 0, 0, 0], 3),
    ] {
        let mut items = sizes.iter().copied();
        assert_eq!(portion(&mut items, 3, 10, |size| *size), sizes[..expected]);
        assert_eq!(items.collect::<Vec<_>>(), sizes[expected..]);
    }
}
