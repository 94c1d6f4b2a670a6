//! `-` as source or target: one object from stdin or to stdout.

use std::io::{self, Read, Write};

use anyhow::{Context, Result};
use narrows::stream::ReceiveOptions;
use narrows_file::decode::decode_within;
use narrows_file::{WriteOptions, Writer};
use narrows_object::meta::FileMeta;
use narrows_object::{CreateOptions, ObjectFile, ObjectWriter, Url};

use super::{Copy, Removed, find_named, key_of};
use crate::args::{reach_max, window_log};
use crate::counts::Counts;
use crate::files;
use crate::flow;

/// Bytes that are read at a time.
const STEP: usize = 256 << 10;

/// Stores stdin as an object.
pub(super) fn put(copy: &Copy<'_>, url: &Url) -> Result<Removed> {
    if url.is_prefix() {
        let text = "stdin has no name; name the object, as in s3://BUCKET/NAME";
        return Err(narrows::Error::misuse(text).into());
    }
    let plain = copy.plan.objects.plain;
    let key = key_of(&url.key, plain);
    let cannot = || format!("cannot write {}", copy.store.url(&key));
    // The length is known at the end only, when the metadata was sent.
    let meta = FileMeta { plain: Some(plain), ..FileMeta::default() };
    let options = CreateOptions { metadata: meta.pairs(), frames: !plain, ..CreateOptions::default() };
    let writer = ObjectWriter::create(&copy.store, &key, options).with_context(cannot)?;
    let mut source = files::Source::open(None)?.into_reader();
    let mut read_into = |writer: &mut dyn Write| -> Result<()> {
        let mut buf = vec![0; STEP];
        loop {
            let n = match source.read(&mut buf) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(anyhow::Error::from(e).context("cannot read stdin")),
            };
            writer.write_all(&buf[..n]).with_context(cannot)?;
            Counts::add(&copy.counts.raw, n as u64);
        }
    };
    let writer = if plain {
        let mut writer = writer;
        read_into(&mut writer)?;
        writer
    } else {
        let mut options = WriteOptions::default().hint(copy.plan.coding.hint.clone());
        options = copy.plan.coding.flow.policy.iter().cloned().fold(options, WriteOptions::policy);
        let mut writer = Writer::new(writer, options).with_context(cannot)?;
        read_into(&mut writer)?;
        writer.finish().map_err(anyhow::Error::from).with_context(cannot)?.0
    };
    let created = writer.finish().with_context(cannot)?;
    Counts::add(&copy.counts.wire, created.len);
    Counts::add(&copy.counts.files, 1);
    Ok(Removed::default())
}

/// Writes an object to stdout.
pub(super) fn get(copy: &Copy<'_>, url: &Url) -> Result<Removed> {
    let cannot = || format!("cannot read {url}");
    let key = find_named(copy, url)?;
    let object = ObjectFile::new(&copy.store, &key).with_context(cannot)?;
    let head = object.head().with_context(cannot)?;
    let target = files::Target::open(None)?;
    let output = target.name();
    let mut sink = target.sink()?;
    let mut reader = object.reader(0..head.object.len);
    let raw = if FileMeta::parse(&head.metadata).plain == Some(false) {
        let long = copy.plan.coding.long;
        let options = || ReceiveOptions::default().threads(flow::threads(None)).reach_max(reach_max(long));
        let decoded = decode_within(reader, sink, window_log(long), options);
        decoded
            .map_err(|e| if output.is_to_blame() { output.blame(e) } else { anyhow::Error::from(e).context(cannot()) })?
            .raw_bytes
    } else {
        io::copy(&mut reader, &mut sink).map_err(|e| {
            if output.is_to_blame() { output.blame(e.into()) } else { anyhow::Error::from(e).context(cannot()) }
        })?
    };
    Counts::add(&copy.counts.raw, raw);
    Counts::add(&copy.counts.wire, head.object.len);
    Counts::add(&copy.counts.files, 1);
    Ok(Removed::default())
}
