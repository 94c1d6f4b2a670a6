//! Base64 as mail has it.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in lines of so many characters. After the last line is no line end.
pub fn base64_lines(bytes: &[u8], columns: usize, crlf: bool) -> Vec<u8> {
    let mut characters = Vec::new();
    for group in bytes.chunks(3) {
        let bits = group.iter().chain([0, 0].iter()).take(3).fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        for place in 0..4 {
            let symbol = ALPHABET[bits >> (18 - 6 * place) & 63];
            characters.push(if place <= group.len() { symbol } else { b'=' });
        }
    }
    let lines: Vec<&[u8]> = characters.chunks(columns).collect();
    lines.join(if crlf { &b"\r\n"[..] } else { b"\n" })
}

/// A message with an attachment: text, lines of base64, text.
pub fn mail(text: &str, attachment: &[u8]) -> Vec<u8> {
    let head = format!(
        "From: a@example.org\r\nTo: b@example.org\r\nSubject: an attachment\r\nMIME-Version: 1.0\r\n\
         Content-Type: multipart/mixed; boundary=part\r\n\r\n--part\r\n\r\n{text}\r\n--part\r\n\
         Content-Transfer-Encoding: base64\r\n\r\n"
    );
    [head.as_bytes(), &base64_lines(attachment, 76, true), b"\r\n--part--\r\n"].concat()
}
