//! Files as the place where the raw bytes of a flow are stored.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::stored::Stored;

impl Stored for File {
    fn read_raw(&self, out: &mut [u8], at: u64) -> io::Result<usize> {
        FileExt::read_at(self, out, at)
    }
}
