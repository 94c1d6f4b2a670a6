//! The marker between plain bytes and frames (format.md section 11.4).

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of every marker. The first byte occurs in no UTF-8 text and nowhere else in a
/// marker, so at most one place among the bytes of a marker can begin another one.
pub const MAGIC: [u8; 8] = *b"\xf9NRMK\r\n\x1a";
/// The first bytes of a direct connection; the client's nonce follows.
pub const DIRECT_MAGIC: [u8; 8] = *b"\xfbNRDC\r\n\x1a";
/// Length of a marker in bytes: the magic and 16 keyed bytes.
pub const MARKER_LEN: usize = MAGIC.len() + NONCE_LEN;
/// Once this many bytes of a marker have arrived, they are certainly one: the magic and four keyed
/// bytes. In other data that prefix follows the magic by chance once in 2^32 times.
pub const CERTAIN_LEN: usize = MAGIC.len() + 4;
/// Length of a nonce in bytes.
pub const NONCE_LEN: usize = 16;

/// Random bytes: one half of a [`Key`].
pub type Nonce = [u8; NONCE_LEN];
/// The bytes between plain bytes and frames of a direction.
pub type Marker = [u8; MARKER_LEN];

/// The key from which both markers of a flow are derived: each side contributes half of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Key([u8; 2 * NONCE_LEN]);

/// The side whose plain bytes a marker ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that connected.
    Client,
    /// The side that accepted.
    Server,
}

impl Side {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

impl Key {
    /// The key of the claim's nonce and the nonce in READY.
    pub fn new(client: &Nonce, server: &Nonce) -> Self {
        let mut key = [0; 2 * NONCE_LEN];
        key[..NONCE_LEN].copy_from_slice(client);
        key[NONCE_LEN..].copy_from_slice(server);
        Self(key)
    }

    /// A 64-bit hash that distinguishes keys and reveals next to nothing about them.
    pub fn tag(&self) -> u64 {
        xxh3_64(&self.0)
    }

    /// The key of a direct connection: the server's half is zero.
    pub fn direct(client: &Nonce) -> Self {
        Self::new(client, &[0; NONCE_LEN])
    }

    /// Serializes the key for another process of this host.
    pub fn to_bytes(&self) -> [u8; 2 * NONCE_LEN] {
        self.0
    }

    /// The key that [`Key::to_bytes`] serialized.
    pub fn from_bytes(bytes: [u8; 2 * NONCE_LEN]) -> Self {
        Self(bytes)
    }

    /// The marker that follows the plain bytes of `side`.
    pub fn marker(&self, side: Side) -> Marker {
        let whose: &[u8] = match side {
            Side::Client => b"narrows marker client",
            Side::Server => b"narrows marker server",
        };
        let mut marker = [0; MARKER_LEN];
        let (magic, keyed) = marker.split_at_mut(MAGIC.len());
        magic.copy_from_slice(&MAGIC);
        keyed.copy_from_slice(&derive(&self.0, &[whose]));
        for byte in keyed.iter_mut().filter(|b| **b == MAGIC[0]) {
            *byte ^= 0x80;
        }
        marker
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(..)")
    }
}

/// Derives 16 bytes that look random to everyone without the secret.
pub(super) fn derive(secret: &[u8; 32], parts: &[&[u8]]) -> Nonce {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    for part in parts {
        hasher.update(part);
    }
    let mut out = [0; NONCE_LEN];
    out.copy_from_slice(&hasher.finalize().as_bytes()[..NONCE_LEN]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_can_begin_at_one_place_only_among_the_bytes_of_another() {
        for i in 0..2000u16 {
            let mut nonce = [0; NONCE_LEN];
            nonce[..2].copy_from_slice(&i.to_le_bytes());
            for side in [Side::Client, Side::Server] {
                let marker = Key::new(&nonce, &[3; NONCE_LEN]).marker(side);
                assert_eq!(marker[..8], MAGIC);
                assert!(!marker[1..].contains(&MAGIC[0]));
            }
        }
    }

    #[test]
    fn markers_are_kept_apart_by_side_and_by_each_half_of_the_key() {
        let key = Key::new(&[1; NONCE_LEN], &[2; NONCE_LEN]);
        let others = [
            key.marker(Side::Server),
            Key::new(&[1; NONCE_LEN], &[3; NONCE_LEN]).marker(Side::Client),
            Key::new(&[2; NONCE_LEN], &[2; NONCE_LEN]).marker(Side::Client),
            Key::new(&[2; NONCE_LEN], &[1; NONCE_LEN]).marker(Side::Client),
        ];
        assert!(others.iter().all(|m| *m != key.marker(Side::Client)));
        // A change of this value is a change of the format.
        let known: [u8; 4] = key.marker(Side::Client)[8..12].try_into().unwrap();
        assert_eq!(known, KNOWN, "{known:02x?}");
    }

    const KNOWN: [u8; 4] = [0x3f, 0xe6, 0xe6, 0x79];
}
