//! Small pictures of cells as PNG, inside of SVG: 256 colours, without compression.

/// Colours of a picture: red, green, blue, opacity.
pub(crate) type Palette = [[u8; 4]; 256];

/// A picture whose bytes are numbers of colours, row by row from the top; as a `data:` address.
pub(crate) fn address(width: usize, height: usize, cells: &[u8], palette: &Palette) -> String {
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    let size = |n: usize| (n as u32).to_be_bytes();
    // 8 bits, colours by number, no interlace.
    let head = [&size(width)[..], &size(height), &[8, 3, 0, 0, 0]].concat();
    piece(&mut out, b"IHDR", &head);
    piece(&mut out, b"PLTE", &palette.iter().flat_map(|c| [c[0], c[1], c[2]]).collect::<Vec<_>>());
    piece(&mut out, b"tRNS", &palette.iter().map(|c| c[3]).collect::<Vec<_>>());
    let mut rows = Vec::with_capacity(cells.len() + height);
    for row in cells.chunks_exact(width.max(1)) {
        // Each row begins with its filter: none.
        rows.push(0);
        rows.extend_from_slice(row);
    }
    piece(&mut out, b"IDAT", &zlib(&rows));
    piece(&mut out, b"IEND", &[]);
    format!("data:image/png;base64,{}", base64(&out))
}

fn piece(out: &mut Vec<u8>, name: &[u8; 4], data: &[u8]) {
    out.extend((data.len() as u32).to_be_bytes());
    let from = out.len();
    out.extend(name);
    out.extend(data);
    out.extend(crc32(&out[from..]).to_be_bytes());
}

/// Stored blocks in the container of zlib.
fn zlib(bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut blocks = bytes.chunks(0xffff).peekable();
    while let Some(block) = blocks.next() {
        let len = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend(len.to_le_bytes());
        out.extend((!len).to_le_bytes());
        out.extend(block);
    }
    let (a, b) = bytes.iter().fold((1u32, 0u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    out.extend((b << 16 | a).to_be_bytes());
    out
}

fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 256] =
        std::array::from_fn(|i| (0..8).fold(i as u32, |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 }));
    !bytes.iter().fold(!0u32, |crc, byte| crc >> 8 ^ table[usize::from(crc as u8 ^ byte)])
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |i: usize| u32::from(part.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let letter = LETTERS[(bits >> (18 - 6 * i) & 63) as usize];
            out.push(if i <= part.len() { letter.into() } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_and_letters_are_those_of_the_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(zlib(b"Wikipedia")[16..], [0x11, 0xe6, 0x03, 0x98]);
        let words = |text: &str| base64(text.as_bytes());
        assert_eq!([words("M"), words("Ma"), words("Man")], ["TQ==", "TWE=", "TWFu"]);
    }
}
