//! `narrows measure`: what Narrows gives between this host and another one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use narrows::Error;
use narrows::stream::{self, Control};
use narrows_copy::carrier::{self, Carrier, Reach};
use narrows_copy::direct::Trust;
use narrows_copy::measure::{self as on_link, MeasureTask, Near};
use narrows_copy::place::Place;
use narrows_forecast::measure::show::{self, Measured};
use narrows_forecast::measure::{folder, page, predict};
use narrows_host::signals;
use narrows_host::words::{shown, shown_json};

use crate::args::measure::MeasureArgs;
use crate::{files, report};

/// Share of the time for the link, which includes the speeds of both hosts.
const FOR_LINK: f64 = 0.5;
/// Share until whose end methods are measured on the folder; the rest is for the prediction.
const UNTIL_PLAYED: f64 = 0.75;
/// Share for listing and reading the folder, which goes on beside the link.
const FOR_READING: f64 = 0.2;
/// Time that the far end has beyond --time: for a login, and for a link that drains.
const BEYOND: Duration = Duration::from_secs(30);

/// Runs `narrows measure`.
pub(crate) fn run(args: &MeasureArgs) -> Result<()> {
    let begun = Instant::now();
    let place = place(&args.host)?.with_port(args.port);
    if let (Some(folder), Some(page)) = (&args.folder, &args.page) {
        files::refuse_same(folder, [Some(page.as_path())])?;
    }
    let control = Arc::new(Control::default());
    signals::stop(&control)?;
    args.folder.as_deref().map_or(Ok(()), check_folder)?;
    let time = Duration::from_secs(args.time);
    let trust = Trust::of(&place, args.token_file.as_deref(), args.insecure)?;
    let shell = carrier::shell_for(&args.shell, &place)?;
    let reach = Reach { shell: &shell, program: &args.remote_narrows, trust: trust.as_ref() };
    let limit_ms = (time + BEYOND).as_millis() as u64;
    let task = MeasureTask { limit_ms, host: on_link::this_host() };
    let (carrier, link) = Carrier::start_measuring(&place, &reach, task)?;
    let stopped = || signals::received().is_some();
    let silence = Duration::from_secs(args.timeout);
    let near = match Near::meet(link, silence, silence, &stopped) {
        Ok(near) => near,
        Err(e) => return Err(carrier.fail_measuring(e).into()),
    };
    let begin = begun.elapsed();
    // A password may have been typed: from here on the time counts.
    let counted = if begin > time / 4 { Instant::now() } else { begun };
    let reading = args.folder.as_deref().map(|path| folder::reading(path, time.mul_f64(FOR_READING))).transpose()?;
    if !args.quiet && !args.json {
        report::note(format_args!("measuring for {} s", args.time));
    }
    let for_link = time.mul_f64(if reading.is_some() { FOR_LINK } else { 0.9 });
    let found = match near.measure(for_link.saturating_sub(counted.elapsed()), &stopped) {
        Ok(found) => found,
        Err(e) => return Err(carrier.fail_measuring(e).into()),
    };
    drop(carrier);
    let folder = match (reading, &args.folder) {
        (Some(reading), Some(path)) => {
            let sample = reading.join().ok().context("a thread failed; this is a bug")??;
            let until = counted + time.mul_f64(UNTIL_PLAYED);
            Some(folder::measured(path, sample, found.up.rate.bytes_per_s, until)?)
        }
        _ => None,
    };
    let over = || counted.elapsed() >= time || signals::received().is_some();
    let prediction = folder.as_ref().and_then(|folder| predict::predict(&found, folder, begin.as_secs_f64(), &over));
    let measured = Measured {
        host: shown(args.host.as_bytes()),
        seconds: begun.elapsed().as_secs_f64(),
        begin_s: begin.as_secs_f64(),
        own_cores: stream::cores(),
        found,
        folder,
        prediction,
    };
    if let Some(path) = &args.page {
        files::write_whole(path, page::html(&measured).as_bytes())?;
    }
    if args.json {
        return report::out(shown_json(&show::json(&measured).to_string()));
    }
    report::out(show::text(&measured))
}

/// Refuses what cannot be read before anything is measured.
fn check_folder(path: &Path) -> Result<()> {
    let cannot = || format!("cannot read {}", shown(path.as_os_str().as_bytes()));
    let data = fs::metadata(path).with_context(cannot)?;
    if data.is_dir() {
        return fs::read_dir(path).map(drop).with_context(cannot);
    }
    if !data.is_file() {
        bail!("{} is neither a file nor a folder", shown(path.as_os_str().as_bytes()));
    }
    File::open(path).map(drop).with_context(cannot)
}

/// The place of a host. A bare name is one of ssh.
fn place(host: &OsStr) -> Result<Place> {
    let misuse = |text: String| anyhow::Error::from(Error::misuse(text));
    let bytes = host.as_bytes();
    let is_path = bytes.is_empty() || bytes.contains(&b'/') && !bytes.windows(3).any(|w| w == b"://");
    let bare = !bytes.contains(&b':') || bytes.starts_with(b"[") && bytes.ends_with(b"]");
    let mut text = host.to_owned();
    if bare && !is_path {
        text.push(":");
    }
    match Place::parse(&text).map_err(misuse)? {
        Place::Local(_) => Err(misuse(format!(
            "'{}' is no host; write [USER@]HOST, ssh://HOST or narrows://HOST:PORT, and the folder behind it",
            shown(bytes)
        ))),
        place => Ok(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_those_of_cp_and_bare_names() {
        let ssh = |host: &str, port, path: &str| Place::Ssh { host: host.into(), port, path: path.into() };
        for (text, wanted) in [
            ("host", ssh("host", None, ".")),
            ("me@host:data", ssh("me@host", None, "data")),
            ("[::1]", ssh("::1", None, ".")),
            ("ssh://me@host:22", ssh("me@host", Some(22), ".")),
            ("narrows://host:9", Place::Direct { host: "host".into(), port: 9, path: "/".into() }),
        ] {
            assert_eq!(place(OsStr::new(text)).unwrap(), wanted, "{text}");
        }
        for bad in ["", "./data", "/var/log", "a/b", "http://host", "-oProxyCommand=x"] {
            assert!(place(OsStr::new(bad)).is_err(), "{bad}");
        }
    }
}
