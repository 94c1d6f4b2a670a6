//! The beginning of packs, for whoever decodes a stream without knowing what it is.

use narrows::Error;
use narrows::entry::{Record, RecordParser};

/// Whether raw bytes are the first ones of a pack: records of an entry stream, of which there is no magic
/// number. Two or more that are whole, with an entry, as every pack has them in its first block.
pub fn begins_as_pack(raw: &[u8]) -> bool {
    let (mut records, mut entries) = (0, 0);
    let mut parser = RecordParser::of_pack();
    let parsed = parser.push(raw, |record| {
        records += 1;
        match record {
            Record::Entry(_) => entries += 1,
            Record::Chunks { .. } | Record::Pieces { .. } | Record::Total { .. } | Record::Ask { .. } => {
                return Err(Error::corrupt("a record that no pack has"));
            }
            _ => {}
        }
        Ok(())
    });
    // The directory may be in the same block.
    records > 1 && entries > 0 && (parsed.is_ok() || parser.is_finished())
}

#[cfg(test)]
mod tests {
    use narrows::entry::{Entry, EntryKind, RecordWriter};

    use super::*;

    #[test]
    fn an_entry_stream_is_known_by_its_records_and_nothing_else_is() {
        let folder = Entry {
            path: b"tree".to_vec(),
            kind: EntryKind::Folder,
            mode: 0o755,
            uid: 0,
            gid: 0,
            mtime_s: 1,
            mtime_ns: 0,
            xattrs: Vec::new(),
        };
        let mut records = RecordWriter::default();
        let mut raw = Vec::new();
        records.failed("cannot read a", &mut raw);
        let failed = raw.len();
        records.entry(&folder, &mut raw).unwrap();
        let entries = raw.len();
        records.finish(&mut raw);
        assert!(begins_as_pack(&raw));
        assert!(begins_as_pack(&[&raw[..], b"a directory"].concat()));
        assert!(begins_as_pack(&raw[failed..]) && begins_as_pack(&raw[..entries]));
        for other in [&raw[..failed], &raw[failed..entries], b"", b"text", &[0; 100], &[1; 100]] {
            assert!(!begins_as_pack(other), "{other:?}");
        }
        let mut damaged = raw.clone();
        damaged[entries] = 0;
        assert!(!begins_as_pack(&damaged));
    }
}
