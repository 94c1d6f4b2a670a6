//! Credentials of a server and its clients: the key file of the server, and the token that it
//! prints.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use data_encoding::BASE64URL_NOPAD;
use narrows_host::words::without_temporary_name;
use rustix::event::{PollFd, PollFlags};

use crate::error::{Blame, Error, Fault, Result};
use crate::secret::{self, FINGERPRINT_LEN, SECRET_LEN};

/// Name of the key file of `narrows serve`.
pub const SERVE: &str = "serve.key";
/// Name of the key file of `narrows tunnel`: who may copy files may not therefore reach services.
pub const TUNNEL: &str = "tunnel.key";
/// The variable of the environment that may hold a token.
pub const VARIABLE: &str = "NARROWS_TOKEN";
const FILE_HEAD: &str = "narrows serve key 1";
const TOKEN_HEAD: &str = "nrw1_";
/// Maximum length of a key file or token file, in bytes; both are much shorter.
const FILE_LEN_MAX: u64 = 4096;
/// Time for a token that comes by a pipe: a program writes it, or a person types it.
const PIPE_TIME: Duration = Duration::from_secs(10);

/// Key pairs of a server and of its clients, as the secrets from which they are derived.
#[derive(Clone)]
pub struct Keys {
    pub(crate) server: [u8; SECRET_LEN],
    pub(crate) client: [u8; SECRET_LEN],
}

impl Keys {
    /// Loads the keys from a file, and creates the file with new keys if it is missing.
    ///
    /// # Errors
    /// The file cannot be read or made, others may read it, or it is none.
    pub fn load(path: &Path) -> Result<Self> {
        let of_file = format!("the key file {}", path.display());
        let text = match read_private(path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                let keys = Self { server: secret::random()?, client: secret::random()? };
                keys.save(path).blame_for(Fault::Local, &of_file)?;
                // Another server may have created the file first.
                read_private(path).blame(Fault::Trust)?
            }
            read => read.blame_for(Fault::Trust, &of_file)?,
        };
        Self::parse(&text).map_err(|e| e.context(of_file))
    }

    fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(FILE_HEAD) {
            return Err(Error::new(Fault::Trust, "it is not a key file of narrows"));
        }
        let secrets = lines.next().and_then(|l| BASE64URL_NOPAD.decode(l.trim().as_bytes()).ok());
        let halves = secrets.as_deref().and_then(halves);
        let (server, client) = halves.ok_or_else(|| Error::new(Fault::Trust, "it is damaged"))?;
        Ok(Self { server, client })
    }

    fn save(&self, path: &Path) -> io::Result<()> {
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        // The temporary file is readable only by its owner from the start.
        let mut file = tempfile::NamedTempFile::new_in(folder).map_err(without_temporary_name)?;
        let secrets = BASE64URL_NOPAD.encode(&[self.server, self.client].concat());
        writeln!(file, "{FILE_HEAD}\n{secrets}")?;
        file.as_file().sync_all()?;
        match file.persist_noclobber(path) {
            Err(e) if e.error.kind() != io::ErrorKind::AlreadyExists => Err(e.error),
            _ => Ok(()),
        }
    }

    /// The token that a client needs to connect to this server.
    ///
    /// # Errors
    /// A key has no public part, which is a bug.
    pub fn token(&self) -> Result<Token> {
        Ok(Token { client: self.client, fingerprint: secret::fingerprint_of_secret(&self.server)? })
    }
}

/// Path of the key file `name` below these folders.
fn default_path(name: &str, state: Option<&OsStr>, home: Option<&OsStr>) -> Result<PathBuf> {
    // Relative paths must be ignored (XDG base directory specification).
    let state = state.map(PathBuf::from).filter(|p| p.is_absolute());
    let state = state.or_else(|| home.map(|h| Path::new(h).join(".local/state")));
    let none = || Error::new(Fault::Local, "no home folder to keep the key in; name a file with --key-file");
    let folder = state.ok_or_else(none)?;
    Ok(folder.join("narrows").join(name))
}

/// The key file `name` of the user of this process.
///
/// # Errors
/// If there is no folder for it.
pub fn path_of_user(name: &str) -> Result<PathBuf> {
    let (state, home) = (std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"));
    default_path(name, state.as_deref(), home.as_deref())
}

/// The secret of the clients of a server, and the fingerprint by which they recognise the server.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    pub(crate) client: [u8; SECRET_LEN],
    pub(crate) fingerprint: [u8; FINGERPRINT_LEN],
}

impl Token {
    /// Parses a token.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self> {
        let bytes = text.trim().strip_prefix(TOKEN_HEAD);
        let bytes = bytes.and_then(|t| BASE64URL_NOPAD.decode(t.as_bytes()).ok());
        match bytes.as_deref().and_then(halves) {
            Some((client, fingerprint)) => Ok(Self { client, fingerprint }),
            None => Err(Error::new(
                Fault::Trust,
                format!(
                    "it is not a token; the other end (`narrows serve --listen`, `narrows tunnel --listen`) prints one, {TOKEN_HEAD}..."
                ),
            )),
        }
    }

    /// Reads a token from a file that other users must not be able to read.
    ///
    /// # Errors
    /// The file cannot be read, others may read it, or it is none.
    pub fn load(path: &Path) -> Result<Self> {
        let of_file = format!("the token file {}", path.display());
        let text = read_private(path).blame_for(Fault::Trust, &of_file)?;
        Self::parse(&text).map_err(|e| e.context(of_file))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN_HEAD}{}", BASE64URL_NOPAD.encode(&[self.client, self.fingerprint].concat()))
    }
}

/// Writes a token to a file that only its owner may read from the start. An existing file is
/// replaced, so that a process that has it open cannot read the new token.
///
/// # Errors
/// It is no file of this user, or cannot be written.
pub fn write_token(path: &Path, token: &str) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(there) => {
            if !there.is_file() {
                return Err(Error::new(Fault::Local, "it exists and is not a regular file"));
            }
            if there.uid() != rustix::process::geteuid().as_raw() {
                return Err(Error::new(Fault::Local, "it belongs to another user; name a file that does not exist"));
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(e).blame(Fault::Local),
    }
    replace(path, token).blame(Fault::Local)
}

/// Writes a line to a new file, which then gets the name.
fn replace(path: &Path, line: &str) -> io::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(without_temporary_name)?;
    writeln!(file, "{line}")?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// Whether the output is a regular file that other users may read.
pub fn is_for_others(output: impl std::os::fd::AsFd) -> bool {
    use rustix::fs::FileType;
    rustix::fs::fstat(output)
        .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::RegularFile && s.st_mode & 0o077 != 0)
}

/// Never shows the secret.
impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

fn halves(bytes: &[u8]) -> Option<([u8; SECRET_LEN], [u8; 32])> {
    let (first, second) = bytes.split_first_chunk()?;
    Some((*first, second.try_into().ok()?))
}

/// Reads a short file that other users must not be able to read, as ssh requires of its keys.
fn read_private(path: &Path) -> io::Result<String> {
    // A pipe without a writer would not open.
    let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = fs::File::options().read(true).custom_flags(nonblocking).open(path)?;
    let data = file.metadata()?;
    if data.is_file() && data.mode() & others(data.uid(), rustix::process::geteuid().as_raw()) != 0 {
        let path = path.display();
        return Err(io::Error::other(format!("other users may read it; make it private: chmod 600 {path}")));
    }
    let mut text = String::new();
    if data.is_file() {
        io::Read::read_to_string(&mut io::Read::take(file, FILE_LEN_MAX), &mut text)?;
    } else {
        let until = Instant::now() + PIPE_TIME;
        io::Read::read_to_string(&mut io::Read::take(Piped { file, until }, FILE_LEN_MAX), &mut text)?;
    }
    Ok(text)
}

/// The bits of a mode that a private file of `owner` must not have. One of root may be readable by a group, which
/// is how root gives it to a service whose user has no name.
fn others(owner: u32, own: u32) -> u32 {
    if owner == 0 && own != 0 { 0o037 } else { 0o077 }
}

/// A pipe or a terminal that is not waited for without end.
struct Piped {
    file: fs::File,
    until: Instant,
}

impl io::Read for Piped {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        let left = rustix::event::Timespec::try_from(left).map_err(io::Error::other)?;
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&left))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => self.file.read(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_token_comes_by_a_pipe_too() {
        let token = Keys::load(&tempfile::tempdir().unwrap().path().join("key")).unwrap().token().unwrap();
        let (read, mut write) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&read));
        writeln!(write, "{token}").unwrap();
        drop(write);
        assert!(Token::load(path.as_ref()).unwrap() == token);
        let silent = io::pipe().unwrap();
        let mut piped = Piped { file: fs::File::from(std::os::fd::OwnedFd::from(silent.0)), until: Instant::now() };
        assert_eq!(io::Read::read(&mut piped, &mut [0]).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn keys_are_made_once_and_nobody_else_may_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state/narrows/serve.key");
        let first = Keys::load(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(first.token().unwrap() == Keys::load(&path).unwrap().token().unwrap());
        let other = Keys::load(&dir.path().join("other")).unwrap();
        assert!(first.token().unwrap() != other.token().unwrap());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(format!("{:#}", Keys::load(&path).err().unwrap()).contains("chmod 600"));
        fs::write(dir.path().join("other"), "something else").unwrap();
        assert!(format!("{:#}", Keys::load(&dir.path().join("other")).err().unwrap()).contains("not a key file"));
    }

    #[test]
    fn a_group_may_read_a_private_file_of_root_alone() {
        let refused = |mode: u32, owner, own| mode & others(owner, own) != 0;
        assert!(!refused(0o600, 0, 7) && !refused(0o640, 0, 7) && refused(0o660, 0, 7) && refused(0o644, 0, 7));
        assert!(!refused(0o600, 7, 7) && refused(0o640, 7, 7) && refused(0o640, 0, 0));
    }

    #[test]
    fn a_token_goes_into_a_file_that_only_its_owner_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let token = Token { client: [7; 32], fingerprint: [9; 32] };
        for there in [false, true] {
            if there {
                fs::write(&path, "what was there").unwrap();
                fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
            }
            let mut open = there.then(|| fs::File::open(&path).unwrap());
            write_token(&path, &token.to_string()).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
            assert!(Token::load(&path).unwrap() == token);
            if let Some(open) = &mut open {
                let mut text = String::new();
                io::Read::read_to_string(open, &mut text).unwrap();
                assert_eq!(text, "what was there", "who has it open sees the token");
            }
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for bad in [&link, dir.path(), &dir.path().join("no/token")] {
            let said = format!("{:#}", write_token(bad, "x").unwrap_err());
            assert!(!said.contains(".tmp"), "{}: {said}", bad.display());
        }
    }

    #[test]
    fn tokens_come_back_and_others_are_refused() {
        let token = Token { client: [7; 32], fingerprint: [9; 32] };
        assert!(Token::parse(&format!(" {token}\n")).unwrap() == token);
        assert!(!format!("{token:?}").contains("Bwc"));
        let text = token.to_string();
        for bad in ["", "nrw1_", &text[..text.len() - 1], &text[1..], &format!("{text}AAAA")] {
            assert!(Token::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_lie_where_state_belongs() {
        let path =
            |state: Option<&str>, home: Option<&str>| default_path(SERVE, state.map(OsStr::new), home.map(OsStr::new));
        assert_eq!(path(Some("/s"), Some("/h")).unwrap(), Path::new("/s/narrows/serve.key"));
        assert_eq!(path(Some("s"), Some("/h")).unwrap(), Path::new("/h/.local/state/narrows/serve.key"));
        assert!(path(None, None).is_err());
    }
}
