//! The codecs of a flow, as a value.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use super::{CODECS, Codec, CodecId, Method};
use crate::error::{Error, Result};

/// Codecs that a flow may use, and that texts of methods may name. A clone costs nothing.
///
/// The default are those of this library. A codec of another crate is a value like them:
///
/// ```
/// # use narrows::codec::{Codec, CodecId, Codecs, Decoder, Encoder, Level};
/// # #[derive(Debug)] struct Mine;
/// # impl Codec for Mine {
/// #     fn id(&self) -> CodecId { CodecId(60) }
/// #     fn name(&self) -> &'static str { "mine" }
/// #     fn levels(&self) -> &'static [Level] { &[1] }
/// #     fn default_level(&self) -> Level { 1 }
/// #     fn encoder_memory(&self, _: Level, _: usize, _: usize) -> usize { 0 }
/// #     fn nominal_ns_per_byte(&self, _: Level) -> (f32, f32) { (1.0, 1.0) }
/// #     fn encoder(&self) -> Box<dyn Encoder> { unimplemented!() }
/// #     fn decoder(&self) -> Box<dyn Decoder> { unimplemented!() }
/// # }
/// let codecs = Codecs::default().with(&Mine)?;
/// assert_eq!(codecs.parse("mine")?.codec, CodecId(60));
/// # Ok::<(), narrows::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Codecs(List);

#[derive(Clone, Default)]
enum List {
    #[default]
    Shipped,
    Own(Arc<[&'static dyn Codec]>),
}

impl Codecs {
    /// Those of this library: [`CODECS`].
    pub fn shipped() -> &'static Self {
        static SHIPPED: Codecs = Codecs(List::Shipped);
        &SHIPPED
    }

    /// Exactly these codecs, in the order of help texts.
    ///
    /// # Errors
    /// `Misuse` if there is no `store`, two codecs have the same number or name, a number is above 63, or
    /// a name has other characters than letters, digits, `-` and `_`.
    pub fn new(codecs: &[&'static dyn Codec]) -> Result<Self> {
        let (mut numbers, mut names) = (BTreeSet::new(), BTreeSet::new());
        for codec in codecs {
            let (CodecId(number), name) = (codec.id(), codec.name());
            if number > 63 {
                return Err(Error::misuse(format!("codec {name}: its number {number} is above 63")));
            }
            let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if name.is_empty() || !name.bytes().all(is_word) {
                return Err(Error::misuse(format!("codec {number}: '{name}' is no name")));
            }
            if !numbers.insert(number) || !names.insert(name) {
                return Err(Error::misuse(format!("codec {name}: another one has its number {number} or its name")));
            }
        }
        if !numbers.contains(&CodecId::STORE.0) {
            return Err(Error::misuse("a flow needs the codec store"));
        }
        Ok(Self(List::Own(codecs.into())))
    }

    /// These codecs and one more.
    ///
    /// # Errors
    /// As [`Codecs::new`].
    pub fn with(&self, codec: &'static dyn Codec) -> Result<Self> {
        Self::new(&[self.list(), &[codec]].concat())
    }

    fn list(&self) -> &[&'static dyn Codec] {
        match &self.0 {
            List::Shipped => CODECS,
            List::Own(codecs) => codecs,
        }
    }

    /// All of them, in the order of help texts.
    pub fn iter(&self) -> impl Iterator<Item = &'static dyn Codec> {
        self.list().iter().copied()
    }

    /// The codec with this number.
    pub fn get(&self, id: CodecId) -> Option<&'static dyn Codec> {
        self.iter().find(|codec| codec.id() == id)
    }

    /// The codec with this name.
    pub fn named(&self, name: &str) -> Option<&'static dyn Codec> {
        self.iter().find(|codec| codec.name() == name)
    }

    /// The codec of a method; if it is not among these, `store`, as which a sender then sends the block.
    pub fn of(&self, method: Method) -> &'static dyn Codec {
        self.get(method.codec).unwrap_or(super::store::ENTRY)
    }

    /// Their numbers, bit n for codec n, as in a preface.
    pub fn bits(&self) -> u64 {
        self.iter().fold(0, |bits, codec| bits | 1 << codec.id().0)
    }

    /// Whether frames of a method can be linked.
    pub fn can_link(&self, method: Method) -> bool {
        self.of(method).can_link()
    }

    /// Nominal time to encode `raw_len` bytes, from [`Codec::nominal_ns_per_byte`].
    pub fn encode_ns(&self, method: Method, raw_len: usize) -> u64 {
        (self.nominal_ns_per_byte(method).0 * raw_len as f32) as u64
    }

    /// Raw bytes/s that one core decodes nominally, from [`Codec::nominal_ns_per_byte`].
    pub fn decode_rate(&self, method: Method) -> f32 {
        1e9 / self.nominal_ns_per_byte(method).1.max(f32::MIN_POSITIVE)
    }

    /// Nanoseconds per raw byte to (encode, decode), from [`Codec::nominal_ns_per_byte`].
    pub fn nominal_ns_per_byte(&self, method: Method) -> (f32, f32) {
        match self.get(method.codec) {
            Some(codec) => codec.nominal_ns_per_byte(method.level),
            None => super::store::ENTRY.nominal_ns_per_byte(0),
        }
    }

    /// Parses a method such as `zstd:level=3`. A codec may be named by its number: `codec-3:level=3`.
    ///
    /// # Errors
    /// `Misuse` if the codec or a setting is unknown.
    pub fn parse(&self, text: &str) -> Result<Method> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let number = || self.get(CodecId(name.strip_prefix("codec-")?.parse().ok()?));
        let Some(codec) = self.named(name).or_else(number) else {
            let known: Vec<_> = self.iter().map(|codec| codec.name()).collect();
            return Err(Error::misuse(format!("no method is called '{name}'; there are {}", known.join(", "))));
        };
        let mut method = Method::new(codec.id(), codec.default_level());
        for item in rest.split(',').filter(|i| !i.is_empty()) {
            if item == "link" && codec.can_link() {
                return Err(Error::misuse(format!(
                    "'link' is for the policy fixed:{name}:link; of a list of methods `balance` links blocks where that \
                     pays: write {name}"
                )));
            }
            let level = item.split_once('=').and_then(|(key, value)| codec.parse_level(key, value));
            method.level = level.ok_or_else(|| Error::misuse(format!("'{item}' is not a setting of {name}")))?;
        }
        Ok(method)
    }

    /// Parses a list such as `store,lz4:accel=16,zstd:level=3`. After a comma, the name of a codec
    /// starts a new method; a `key=value` is one more setting of the method before. A semicolon
    /// always starts a new method.
    ///
    /// # Errors
    /// The list is empty, or a method or setting is unknown.
    pub fn parse_list(&self, text: &str) -> Result<Vec<Method>> {
        let mut specs: Vec<String> = Vec::new();
        for part in text.split(';').filter(|p| !p.trim().is_empty()) {
            let mut first = true;
            for item in part.split(',').map(str::trim).filter(|i| !i.is_empty()) {
                let is_setting = item.contains('=') && !item.contains(':');
                match specs.last_mut() {
                    Some(spec) if is_setting && !first => {
                        spec.push(if spec.contains(':') { ',' } else { ':' });
                        spec.push_str(item);
                    }
                    _ => specs.push(item.to_owned()),
                }
                first = false;
            }
        }
        if specs.is_empty() {
            return Err(Error::misuse("a list of methods needs at least one, for example zstd:level=3"));
        }
        specs.iter().map(|spec| self.parse(spec)).collect()
    }

    /// Parses a method with an optional suffix for linking: `zstd:level=3,link`, `lz4:link`. Returns
    /// whether it is linked.
    ///
    /// # Errors
    /// The method or its settings are unknown, or its frames cannot be linked.
    pub fn parse_linked(&self, text: &str) -> Result<(Method, bool)> {
        let (method, linked) = match text.strip_suffix(",link").or_else(|| text.strip_suffix(":link")) {
            Some(method) => (method, true),
            None => (text, false),
        };
        let method = self.parse(method)?;
        if linked && !self.can_link(method) {
            return Err(Error::misuse(format!("{} frames cannot be linked", self.of(method).name())));
        }
        Ok((method, linked))
    }

    /// Prints what [`Codecs::parse`] reads back: the name of a codec, or the number of one that is not among
    /// these.
    pub fn print(&self, method: Method) -> String {
        let Some(codec) = self.get(method.codec) else {
            return format!("codec-{}:level={}", method.codec.0, method.level);
        };
        match method.level == codec.default_level() {
            true => codec.name().to_owned(),
            false => format!("{}:{}", codec.name(), codec.print_level(method.level)),
        }
    }

    /// Prints a list that [`Codecs::parse_list`] reads back.
    pub fn print_list(&self, methods: &[Method]) -> String {
        methods.iter().map(|method| self.print(*method)).collect::<Vec<_>>().join(",")
    }

    /// Prints a method so that [`Codecs::parse_linked`] reads it back.
    pub fn print_linked(&self, method: Method, linked: bool) -> String {
        let text = self.print(method);
        match (linked, text.contains(':')) {
            (false, _) => text,
            (true, true) => format!("{text},link"),
            (true, false) => format!("{text}:link"),
        }
    }
}

impl fmt::Debug for Codecs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|codec| codec.name())).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_store_and_each_number_and_name_once() {
        let shipped = Codecs::default();
        assert_eq!(shipped.iter().count(), CODECS.len());
        let lz4 = shipped.named("lz4").unwrap();
        let message = |codecs: &[&'static dyn Codec]| Codecs::new(codecs).unwrap_err().message;
        assert!(message(&[]).contains("store") && message(&[lz4]).contains("store"));
        assert!(shipped.with(lz4).unwrap_err().message.contains("another one"));
        let two = Codecs::new(&[super::super::store::ENTRY, lz4]).unwrap();
        assert_eq!((two.bits(), format!("{two:?}")), (0b101, "[\"store\", \"lz4\"]".to_owned()));
        assert!(two.parse("zstd").unwrap_err().message.contains("there are store, lz4"));
    }

    #[test]
    fn a_method_of_another_registry_prints_by_its_number_which_its_own_reads() {
        let few = Codecs::new(&[super::super::store::ENTRY]).unwrap();
        let method = Method::zstd(7);
        let text = few.print_linked(method, true);
        assert_eq!(text, "codec-3:level=7,link");
        assert_eq!(Codecs::shipped().parse_linked(&text).unwrap(), (method, true));
        assert!(few.parse_linked(&text).is_err() && !few.can_link(method));
        assert_eq!(few.of(method).name(), "store");
        assert_eq!(few.encode_ns(method, 1000), few.encode_ns(Method::STORE, 1000));
    }
}
