//! The first frame of a carrier (docs/format.md, section 21.2).

use narrows::{Error, Result};

use super::frame::{Frame, GREETING, Kind, Parser, put};
use super::limits::CARRIERS_MAX;

const VERSION: u8 = 1;
/// Length of its body.
pub const LEN: usize = 32;
/// The part of a dialer's name that stays while its program runs.
pub const PROGRAM_LEN: usize = 8;

/// Which carrier this is, and of which session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// Place of the carrier in its session, below [`CARRIERS_MAX`].
    pub carrier: u8,
    /// Counts the carriers of the session, modulo 65,536: tells those apart that had the same place.
    pub attempt: u16,
    /// Random number of the dialer: of its program, and after that one which is new when it does not
    /// trust the acceptor any more.
    pub dialer: [u8; 16],
    /// Counts the dialer's sessions.
    pub session: u32,
    /// Random number of the acceptor's side of the session; 0 in the hello of a dialer.
    pub instance: u64,
}

/// Where a carrier goes in its session.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    pub number: u8,
    /// As the dialer's hello has it; a dialer counts itself.
    pub attempt: Option<u16>,
}

impl From<u8> for Place {
    fn from(number: u8) -> Self {
        Self { number, attempt: None }
    }
}

impl Hello {
    /// Where an acceptor puts the carrier.
    pub fn place(&self) -> Place {
        Place { number: self.carrier, attempt: Some(self.attempt) }
    }

    /// What the names of a dialer's program have in common.
    pub fn program(&self) -> [u8; PROGRAM_LEN] {
        self.dialer.first_chunk().copied().unwrap_or_default()
    }

    /// The first bytes of a carrier.
    pub fn greet(&self) -> Vec<u8> {
        let mut out = GREETING.to_vec();
        let [low, high] = self.attempt.to_le_bytes();
        let head = [VERSION, self.carrier, low, high];
        let tail = [&self.session.to_le_bytes()[..], &self.instance.to_le_bytes()].concat();
        put(&mut out, Kind::Hello, 0, &[&head[..], &self.dialer, &tail].concat());
        out
    }

    /// The hello that a carrier begins with, once it has arrived.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported`
    pub fn expect(parser: &mut Parser) -> Result<Option<Self>> {
        match parser.next_frame()? {
            None => Ok(None),
            Some(Frame { kind: Kind::Hello, body, .. }) => Self::parse(&body).map(Some),
            Some(_) => Err(Error::corrupt("the carrier does not begin with a hello")),
        }
    }

    fn parse(body: &[u8]) -> Result<Self> {
        let Some(([version, carrier, low, high], rest)) = body.split_first_chunk::<4>() else {
            return Err(Error::corrupt("the hello of a carrier is too short"));
        };
        if *version != VERSION {
            return Err(Error::unsupported(format!("the peer speaks version {version} of tunnels, this program 1")));
        }
        let wrong = || Error::corrupt("the hello of a carrier is not valid");
        let (dialer, rest) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
        let (session, instance) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let instance = <[u8; 8]>::try_from(instance).map_err(|_| wrong())?;
        if usize::from(*carrier) >= CARRIERS_MAX {
            return Err(wrong());
        }
        let (session, instance) = (u32::from_le_bytes(*session), u64::from_le_bytes(instance));
        let attempt = u16::from_le_bytes([*low, *high]);
        Ok(Self { carrier: *carrier, attempt, dialer: *dialer, session, instance })
    }
}

#[cfg(test)]
mod tests {
    use narrows::ErrorKind;
    use narrows::block::Block;

    use super::*;

    fn read(bytes: &[u8]) -> Result<Option<Hello>> {
        let mut parser = Parser::new(0);
        parser.push(Block::from_vec(bytes.to_vec()));
        Hello::expect(&mut parser)
    }

    #[test]
    fn a_hello_comes_back_and_a_part_of_it_is_none() {
        let hello = Hello { carrier: 3, attempt: 65_534, dialer: [9; 16], session: 70_000, instance: 1 << 63 };
        let bytes = hello.greet();
        assert_eq!(read(&bytes).unwrap(), Some(hello));
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]).unwrap(), None, "{len}");
        }
    }

    #[test]
    fn a_dialer_s_hello_is_as_the_format_says() {
        let dialer = *b"0123456789abcdef";
        let hello = Hello { carrier: 1, attempt: 0x0304, dialer, session: 2, instance: 0x1122_3344_5566_7788 };
        let hex: String = hello.greet().iter().map(|byte| format!("{byte:02x}")).collect();
        let body = "010104033031323334353637383961626364656602000000";
        assert_eq!(hex, format!("934e5254550d0a1a010000000000002000{body}8877665544332211"));
    }

    #[test]
    fn others_are_refused() {
        let mut bytes = Hello { carrier: 0, attempt: 0, dialer: [9; 16], session: 1, instance: 0 }.greet();
        let body = bytes.len() - LEN;
        bytes[body + 1] = CARRIERS_MAX as u8;
        assert_eq!(read(&bytes).unwrap_err().kind, ErrorKind::Corrupt);
        bytes[body] = 2;
        assert_eq!(read(&bytes).unwrap_err().kind, ErrorKind::Unsupported);
        let mut other = GREETING.to_vec();
        put(&mut other, Kind::Ping, 0, &[0; 8]);
        assert_eq!(read(&other).unwrap_err().kind, ErrorKind::Corrupt);
        let mut short = GREETING.to_vec();
        put(&mut short, Kind::Hello, 0, &[1, 0, 0, 0, 1]);
        assert_eq!(read(&short).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
