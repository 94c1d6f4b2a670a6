//! Rank: words become indices into the sorted list of distinct values. Floats that were unpacked from
//! integers, and decimal readings of sensors, have few.

use narrows::{Error, Result};

use crate::words::{Kind, Word, Words, each};

/// Most distinct values: the index has two bytes, and the tables stay in the second-level cache.
pub(crate) const DISTINCT_MAX: usize = 1 << 16;

/// Slots of the hash table.
const SLOTS: usize = 2 * DISTINCT_MAX;

/// Most distinct values for an element, 1 of so many: beyond it the list costs more than it saves.
const SHARE: usize = 2;

/// Elements, from all over the chunk, whose number of distinct values must be plausible: half as many
/// values as elements give 15 of 16 in the sample of a chunk of 2^16.
const SAMPLE: usize = 4096;

/// Distinct values in ascending order, and the index of each word.
pub(crate) struct Ranked {
    pub list: Words,
    pub ranks: Words,
}

/// `None` if there are too many distinct values.
pub(crate) fn apply(words: &Words, kind: Kind) -> Option<Ranked> {
    each!(words, v => rank(v, kind))
}

fn rank<W: Word>(v: &[W], kind: Kind) -> Option<Ranked> {
    let max = (v.len() / SHARE).clamp(1, DISTINCT_MAX);
    if W::BYTES > 2 && v.len() >= 4 * SAMPLE {
        let step = v.len() / SAMPLE;
        hashed(v.iter().step_by(step).copied(), SAMPLE * 15 / 16)?;
    }
    let (values, ids) = if W::BYTES <= 2 { direct(v, max)? } else { hashed(v.iter().copied(), max)? };
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_unstable_by_key(|&i| values[i as usize].order(kind));
    let list = W::wrap(order.iter().map(|&i| values[i as usize]).collect());
    let mut ranks = vec![0u16; values.len()];
    order.iter().enumerate().for_each(|(rank, &i)| ranks[i as usize] = rank as u16);
    let ranks = if values.len() <= 256 {
        Words::W1(ids.iter().map(|&id| ranks[usize::from(id)] as u8).collect())
    } else {
        Words::W2(ids.iter().map(|&id| ranks[usize::from(id)]).collect())
    };
    Some(Ranked { list, ranks })
}

/// Distinct values by first appearance, and the number of each word's, for short words.
fn direct<W: Word>(v: &[W], max: usize) -> Option<(Vec<W>, Vec<u16>)> {
    let mut id_of = vec![u32::MAX; 1 << W::BITS];
    let mut values = Vec::new();
    let mut ids = Vec::with_capacity(v.len());
    for &w in v {
        let id = &mut id_of[w.wide() as usize];
        if *id == u32::MAX {
            if values.len() == max {
                return None;
            }
            *id = values.len() as u32;
            values.push(w);
        }
        ids.push(*id as u16);
    }
    Some((values, ids))
}

fn hashed<W: Word>(v: impl Iterator<Item = W>, max: usize) -> Option<(Vec<W>, Vec<u16>)> {
    // A slot is the number of a value, plus one.
    let mut slots = vec![0u32; SLOTS];
    let mut values: Vec<W> = Vec::new();
    let mut ids = Vec::with_capacity(v.size_hint().0);
    for w in v {
        let mut slot = (w.wide().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 47) as usize;
        let id = loop {
            match slots[slot] {
                0 => {
                    if values.len() == max {
                        return None;
                    }
                    values.push(w);
                    slots[slot] = values.len() as u32;
                    break values.len() - 1;
                }
                id if values[id as usize - 1] == w => break id as usize - 1,
                _ => slot = (slot + 1) % SLOTS,
            }
        };
        ids.push(id as u16);
    }
    Some((values, ids))
}

/// Words from indices. The list must ascend, so that there is one way to write it.
pub(crate) fn invert(ranks: &Words, list: &Words, kind: Kind) -> Result<Words> {
    each!(list, list => look_up(ranks, list, kind))
}

fn look_up<W: Word>(ranks: &Words, list: &[W], kind: Kind) -> Result<Words> {
    if !list.windows(2).all(|pair| pair[0].order(kind) < pair[1].order(kind)) {
        return Err(Error::corrupt("the list of values does not ascend"));
    }
    // Padding makes the look-up of every possible index safe; a wrong one is found afterwards.
    let (words, highest) = match ranks {
        Words::W1(ranks) => {
            let mut table = [W::default(); 256];
            table.iter_mut().zip(list).for_each(|(t, v)| *t = *v);
            (ranks.iter().map(|&r| table[usize::from(r)]).collect(), ranks.iter().copied().max().map(usize::from))
        }
        Words::W2(ranks) => {
            let mut table = list.to_vec();
            table.resize(DISTINCT_MAX, W::default());
            let table: &[W; DISTINCT_MAX] = table[..].try_into().expect("resized");
            (ranks.iter().map(|&r| table[usize::from(r)]).collect(), ranks.iter().copied().max().map(usize::from))
        }
        _ => return Err(Error::corrupt("ranks have 1 or 2 bytes")),
    };
    if highest.is_some_and(|highest| highest >= list.len()) {
        return Err(Error::corrupt("an index is beyond the list of values"));
    }
    Ok(W::wrap(words))
}
