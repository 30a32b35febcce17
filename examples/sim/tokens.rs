//! An exact set of players: the filters are compared with it.

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens(Vec<u64>);

impl Tokens {
    pub fn has(&self, token: usize) -> bool {
        self.0.get(token / 64).is_some_and(|word| word >> (token % 64) & 1 == 1)
    }

    pub fn insert(&mut self, token: usize) {
        if self.0.len() <= token / 64 {
            self.0.resize(token / 64 + 1, 0);
        }
        self.0[token / 64] |= 1 << (token % 64);
    }

    pub fn unite(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| *ours |= theirs);
    }

    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The tokens that `other` lacks.
    pub fn without<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        self.0.iter().enumerate().flat_map(|(place, &word)| {
            let mut left = word & !other.0.get(place).copied().unwrap_or_default();
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(place * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_put_in_is_there_and_what_another_lacks_is_told() {
        let (mut one, mut other) = (Tokens::default(), Tokens::default());
        for token in [3, 64, 200] {
            one.insert(token);
        }
        other.insert(64);
        assert_eq!(one.without(&other).collect::<Vec<_>>(), [3, 200]);
        assert_eq!(other.without(&one).count(), 0);
        other.unite(&one);
        assert!(other.has(200) && !other.has(201) && other.len() == 3);
    }
}
