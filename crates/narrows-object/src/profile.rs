//! The files of the AWS tools: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::env;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;

/// Longest such file that is read: thousands of profiles.
const FILE_LEN_MAX: u64 = 1 << 20;

/// What the files say of one profile.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
    /// `path` or `virtual`.
    pub(crate) addressing_style: Option<String>,
    /// The setting that would give the keys, if it is one that only the AWS tools follow.
    pub(crate) elsewhere: Option<String>,
}

impl Profile {
    /// The profile that `AWS_PROFILE` names, or `default`.
    ///
    /// # Errors
    /// A file cannot be read, or a profile that was named is in none.
    pub(crate) fn load() -> io::Result<Self> {
        let named = env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
        let name = named.as_deref().unwrap_or("default");
        let credentials = read("AWS_SHARED_CREDENTIALS_FILE", "credentials")?;
        let config = read("AWS_CONFIG_FILE", "config")?;
        let of_config = if name == "default" { "default".to_owned() } else { format!("profile {name}") };
        let mut all = settings(&config, &of_config);
        let in_credentials = settings(&credentials, name);
        if named.is_some() && all.is_empty() && in_credentials.is_empty() {
            let text = format!("there is no profile '{name}' in ~/.aws/config or ~/.aws/credentials (AWS_PROFILE)");
            return Err(io::Error::other(text));
        }
        all.extend(in_credentials);
        Ok(Self::of(all))
    }

    fn of(mut all: BTreeMap<String, String>) -> Self {
        let elsewhere = ["sso_session", "sso_start_url", "credential_process", "role_arn"];
        Self {
            access_key_id: all.remove("aws_access_key_id"),
            secret_access_key: all.remove("aws_secret_access_key"),
            session_token: all.remove("aws_session_token"),
            region: all.remove("region"),
            endpoint: all.remove("endpoint_url"),
            addressing_style: all.remove("s3.addressing_style"),
            elsewhere: elsewhere.into_iter().find(|key| all.contains_key(*key)).map(str::to_owned),
        }
    }
}

fn read(variable: &str, name: &str) -> io::Result<String> {
    let path = match (env::var_os(variable), env::home_dir()) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(home)) => home.join(".aws").join(name),
        (None, None) => return Ok(String::new()),
    };
    let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display()));
    let mut bytes = Vec::new();
    match File::open(&path) {
        Ok(file) => file.take(FILE_LEN_MAX).read_to_end(&mut bytes).map_err(named)?,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => 0,
        Err(e) => return Err(named(e)),
    };
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The settings in `[section]`; those of a nested group are `group.key`.
fn settings(text: &str, section: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let (mut inside, mut group) = (false, String::new());
    for line in text.lines() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let words: Vec<_> = name.split_whitespace().collect();
            inside = words.join(" ") == section;
            group.clear();
            continue;
        }
        let Some((key, value)) = trimmed.split_once('=').filter(|_| inside) else { continue };
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim());
        if line.starts_with([' ', '\t']) && !group.is_empty() {
            found.insert(format!("{group}.{key}"), value.to_owned());
        } else if value.is_empty() {
            group = key;
        } else {
            group.clear();
            found.insert(key, value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_as_the_aws_tools_read_them() {
        let config = "\
# a comment\n[default]\nregion = eu-west-1\n\n[profile  work]\nregion=eu-central-1\nendpoint_url = http://h:1\n\
s3 =\n  addressing_style = path\n  other = 1\noutput = json\n[profile sso]\nsso_session = x\n[broken\nregion=no\n";
        let of = |section: &str| Profile::of(settings(config, section));
        assert_eq!(of("default").region.as_deref(), Some("eu-west-1"));
        let work = of("profile work");
        assert_eq!(work.region.as_deref(), Some("eu-central-1"));
        assert_eq!(work.endpoint.as_deref(), Some("http://h:1"));
        assert_eq!(work.addressing_style.as_deref(), Some("path"));
        assert_eq!(of("profile sso").elsewhere.as_deref(), Some("sso_session"));
        assert_eq!(of("profile none"), Profile::default());
        let keys = Profile::of(settings("[w]\naws_access_key_id = A\nAWS_SECRET_ACCESS_KEY=b=/c\n", "w"));
        assert_eq!((keys.access_key_id.as_deref(), keys.secret_access_key.as_deref()), (Some("A"), Some("b=/c")));
    }
}
