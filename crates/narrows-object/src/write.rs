//! Writing an object: one request if it is short, else parts with whole frames, several at a time.
//! Nothing has the name before everything is there.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, MultipartUpload, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    UpdateVersion,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::condition::{Condition, Version};
use crate::cut::Frames;
use crate::error::{Act, explain};
use crate::meta;
use crate::runtime;
use crate::store::{self, Store};
use crate::url::{Scheme, Url};

/// Shortest part, and the longest object that is written by one request. S3 wants 5 MiB; with 8 a part
/// takes longer than its request at 1 Gbit/s.
const PART: usize = 8 << 20;
/// Longest part of an object of unknown length.
const PART_MAX: usize = 64 << 20;
/// Most parts of an object: of S3.
const PARTS_MAX: usize = 10_000;
/// After so many parts, an object of unknown length gets parts twice as long: 10,000 of them have 0.5 TB.
const PARTS_PER_LEN: usize = 1000;
/// A part is cut within a frame if that is this much longer: the longest usual frame.
const SLACK: usize = 4 << 20;
/// Parts of one object on their way at a time.
const PARTS_AT_ONCE: usize = 4;
/// MiB of parts on their way at a time, of all objects together.
const MIB_AT_ONCE: u32 = 64;
/// What is left of an upload is removed within this time, or stays.
const ABORT_FOR: Duration = Duration::from_secs(10);

/// MiB of parts that may still be sent.
static ROOM: Semaphore = Semaphore::const_new(MIB_AT_ONCE as usize);

/// How an object is written.
#[derive(Debug, Clone, Default)]
pub struct CreateOptions {
    /// When it may be written.
    pub condition: Condition,
    /// User metadata.
    pub metadata: Vec<(String, String)>,
    /// Stored bytes, at least about, if that is known.
    pub len: Option<u64>,
    /// The bytes are frames, which parts are to have whole.
    pub frames: bool,
}

/// An object that was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Created {
    /// Which content it has now.
    pub version: Version,
    /// Stored bytes.
    pub len: u64,
}

/// Writes an object. It appears with [`ObjectWriter::finish`]; what is dropped before leaves nothing.
pub struct ObjectWriter {
    store: Store,
    path: Path,
    url: Url,
    options: CreateOptions,
    attributes: Attributes,
    /// Identifies this upload.
    id: String,
    buffer: Vec<u8>,
    frames: Option<Frames>,
    len: u64,
    upload: Option<Upload>,
}

/// An upload in parts.
struct Upload {
    to: To,
    tasks: JoinSet<(usize, object_store::Result<PartId>)>,
    ids: Vec<Option<PartId>>,
}

enum To {
    Store {
        parts: Arc<dyn MultipartStore>,
        id: String,
    },
    /// Of files, which know no numbered parts, and of Azure, where these take no metadata.
    Whole(Box<dyn MultipartUpload>),
}

impl ObjectWriter {
    /// Begins an object. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// There cannot be such a key.
    pub fn create(store: &Store, key: &str, options: CreateOptions) -> io::Result<Self> {
        if key.is_empty() || key.ends_with('/') {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "an object needs a name, which ends in no slash"));
        }
        let path = store::path(key)?;
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let id = format!("{:016x}", u64::from_ne_bytes(random));
        let mut attributes = Attributes::new();
        if store.url.scheme != Scheme::File {
            attributes.insert(Attribute::ContentType, "application/octet-stream".into());
            let pairs = options.metadata.iter().cloned().chain([(meta::UPLOAD.to_owned(), id.clone())]);
            for (name, value) in pairs {
                let name = meta::spelt(&name, store.url.scheme);
                attributes.insert(Attribute::Metadata(name.into()), value.into());
            }
        }
        let frames = (options.frames && !store.even_parts).then(Frames::default);
        let url = store.url(key);
        Ok(Self {
            store: store.clone(),
            path,
            url,
            options,
            attributes,
            id,
            buffer: Vec::new(),
            frames,
            len: 0,
            upload: None,
        })
    }

    /// Its address.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// Ends the object, which has its name then.
    ///
    /// # Errors
    /// The store fails, or the condition does not hold; then nothing has changed.
    pub fn finish(mut self) -> io::Result<Created> {
        let result = if self.upload.is_some() { self.complete()? } else { self.put()? };
        Ok(Created { version: Version { etag: result.e_tag, number: result.version }, len: self.len })
    }

    /// Bytes of the next part.
    fn part_len(&self) -> usize {
        let done = self.upload.as_ref().map_or(0, |upload| upload.ids.len());
        match self.options.len {
            Some(len) => PART.max(usize::try_from(len / (PARTS_MAX as u64 * 9 / 10)).unwrap_or(usize::MAX)),
            // All of one length where the store wants that.
            None if self.store.even_parts => PART_MAX,
            None => (PART << (done / PARTS_PER_LEN).min(8)).min(PART_MAX),
        }
    }

    fn explain(&self, error: &object_store::Error) -> io::Error {
        explain(error, Act::Write, &self.url)
    }

    /// Writes everything by one request.
    fn put(&mut self) -> io::Result<PutResult> {
        let mode = match &self.options.condition {
            Condition::None => PutMode::Overwrite,
            Condition::Create => PutMode::Create,
            Condition::IfMatch(v) => {
                PutMode::Update(UpdateVersion { e_tag: v.etag.clone(), version: v.number.clone() })
            }
        };
        let options = PutOptions { mode, attributes: self.attributes.clone(), ..PutOptions::default() };
        let payload = PutPayload::from(Bytes::from(std::mem::take(&mut self.buffer)));
        let put = self.store.objects.put_opts(&self.path, payload, options);
        match runtime::wait(&self.store.stop, put)? {
            Ok(result) => Ok(result),
            Err(e) => self.is_written().map_or_else(|| Err(self.explain(&e)), Ok),
        }
    }

    /// The object, if this upload wrote it although the answer was lost.
    fn is_written(&self) -> Option<PutResult> {
        if self.store.url.scheme == Scheme::File {
            return None;
        }
        let head = runtime::wait(&self.store.stop, store::head(&self.store.objects, &self.path)).ok()?.ok()??;
        let is_ours = head.metadata.get(meta::UPLOAD) == Some(&self.id) && head.object.len == self.len;
        is_ours.then(|| PutResult {
            e_tag: head.object.version.etag,
            version: head.object.version.number,
            extensions: object_store::Extensions::default(),
        })
    }

    /// Sends the first `n` bytes of the buffer as a part.
    fn send(&mut self, n: usize) -> io::Result<()> {
        if self.upload.is_none() {
            self.upload = Some(self.begin()?);
        }
        let rest = self.buffer.split_off(n);
        let part = Bytes::from(std::mem::replace(&mut self.buffer, rest));
        let stop = Arc::clone(&self.store.stop);
        let Some(upload) = &mut self.upload else { return Ok(()) };
        if upload.ids.len() >= PARTS_MAX {
            let text = "the object would have more than 10,000 parts; write it in several";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let number = upload.ids.len();
        upload.ids.push(None);
        let path = self.path.clone();
        let mib = (part.len() >> 20).max(1) as u32;
        let work: std::pin::Pin<Box<dyn Future<Output = object_store::Result<PartId>> + Send>> = match &mut upload.to {
            To::Store { parts, id } => {
                let (parts, id) = (Arc::clone(parts), id.clone());
                Box::pin(async move { parts.put_part(&path, &id, number, PutPayload::from(part)).await })
            }
            To::Whole(upload) => {
                let sent = upload.put_part(PutPayload::from(part));
                Box::pin(async move { sent.await.map(|()| PartId { content_id: String::new() }) })
            }
        };
        let result = runtime::wait(&stop, async {
            while upload.tasks.len() >= PARTS_AT_ONCE {
                upload.take().await?;
            }
            let permit = ROOM.acquire_many(mib.min(MIB_AT_ONCE)).await;
            upload.tasks.spawn(async move {
                let _permit = permit;
                (number, work.await)
            });
            Ok(())
        })?;
        result.map_err(|e: object_store::Error| self.explain(&e))
    }

    fn begin(&self) -> io::Result<Upload> {
        // Before gigabytes are sent in vain.
        self.check_condition()?;
        let options = PutMultipartOptions { attributes: self.attributes.clone(), ..PutMultipartOptions::default() };
        let begun = runtime::wait(&self.store.stop, async {
            Ok(match &self.store.parts {
                Some(parts) => {
                    let id = parts.create_multipart_opts(&self.path, options).await?;
                    To::Store { parts: Arc::clone(parts), id }
                }
                None => To::Whole(self.store.objects.put_multipart_opts(&self.path, options).await?),
            })
        })?;
        let to = begun.map_err(|e: object_store::Error| self.explain(&e))?;
        Ok(Upload { to, tasks: JoinSet::new(), ids: Vec::new() })
    }

    /// Compares the condition with what is there. Whoever comes between this and the request that
    /// completes the object is met by the condition of that request, which some stores do not know.
    fn check_condition(&self) -> io::Result<()> {
        let there = match &self.options.condition {
            Condition::None => return Ok(()),
            _ => self.store.head(&self.url.key)?.map(|head| head.object.version),
        };
        match &self.options.condition {
            Condition::Create if there.is_some() => {
                Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is an object of that name already"))
            }
            Condition::IfMatch(version) if there.is_none_or(|there| there.etag != version.etag) => {
                Err(io::Error::other("the object was changed by somebody else meanwhile, and is kept"))
            }
            _ => Ok(()),
        }
    }

    /// Sends the rest and completes the upload.
    fn complete(&mut self) -> io::Result<PutResult> {
        if !self.buffer.is_empty() {
            self.send(self.buffer.len())?;
        }
        self.check_condition()?;
        let Some(mut upload) = self.upload.take() else { return Err(io::Error::other("there is no upload")) };
        let completed = runtime::wait(&self.store.stop, async {
            while !upload.tasks.is_empty() {
                upload.take().await?;
            }
            let set = |key: &str| self.store.conditions.set(key, &self.options.condition, self.store.url.scheme);
            match &mut upload.to {
                To::Store { parts, id } => {
                    let _set = set(id);
                    let ids = upload.ids.iter().flatten().cloned().collect();
                    parts.complete_multipart(&self.path, id, ids).await
                }
                To::Whole(upload) => {
                    let _set = set(self.path.as_ref());
                    upload.complete().await
                }
            }
        });
        match completed {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(e)) => {
                let written = self.is_written();
                if written.is_none() {
                    self.upload = Some(upload);
                }
                written.map_or_else(|| Err(self.explain(&e)), Ok)
            }
            Err(e) => {
                self.upload = Some(upload);
                Err(e)
            }
        }
    }
}

impl Upload {
    /// Waits for a part.
    async fn take(&mut self) -> object_store::Result<()> {
        match self.tasks.join_next().await {
            Some(Ok((number, part))) => self.ids[number] = Some(part?),
            Some(Err(source)) => return Err(object_store::Error::JoinError { source }),
            None => {}
        }
        Ok(())
    }
}

impl Write for ObjectWriter {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let part_len = self.part_len();
        let mut n = buf.len();
        let mut is_end = self.frames.is_none();
        if let Some(frames) = &mut self.frames
            && let Some(end) = frames.next(buf)
        {
            (n, is_end) = (end, true);
        }
        if self.buffer.capacity() == 0 {
            self.buffer.reserve(n.max(64 << 10));
        }
        self.buffer.extend_from_slice(&buf[..n]);
        self.len += n as u64;
        if self.frames.is_none() {
            while self.buffer.len() > self.part_len() {
                self.send(self.part_len())?;
            }
        } else if is_end && self.buffer.len() > part_len || self.buffer.len() >= part_len + SLACK {
            self.send(self.buffer.len())?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for ObjectWriter {
    /// Removes what was sent of an upload that was not completed.
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let Ok(handle) = runtime::handle() else { return };
        let path = self.path.clone();
        handle.block_on(async move {
            // A part that arrives after the request would stay.
            upload.tasks.shutdown().await;
            let abort = async {
                match &mut upload.to {
                    To::Store { parts, id } => parts.abort_multipart(&path, id).await,
                    To::Whole(upload) => upload.abort().await,
                }
            };
            let _ = tokio::time::timeout(ABORT_FOR, abort).await;
        });
    }
}
