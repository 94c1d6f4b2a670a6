//! A bucket, and what its objects are.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::multipart::MultipartStore;
use object_store::path::Path;
use object_store::{
    Attribute, BackoffConfig, ClientOptions, GetOptions, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt,
    RetryConfig,
};

use crate::condition::{Conditions, Version};
use crate::error::{Act, explain};
use crate::meta;
use crate::object::{Head, Object};
use crate::pages::{Listed, PAGES};
use crate::profile::Profile;
use crate::runtime::{self, Stop};
use crate::service::{self, Connector, METADATA_FOR, OddKeys};
use crate::signer::Signer;
use crate::url::{Scheme, Url};

/// A request that fails is tried again so often: with the pauses below for some ten seconds, the
/// time that a busy or restarting store needs.
const RETRIES: usize = 7;
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// No further attempt after this time. Signatures are valid for longer.
const RETRY_FOR: Duration = Duration::from_secs(120);
/// Requests for the properties of objects at a time.
const HEADS: usize = 16;

/// How a store is reached. What is not given comes from the environment.
#[derive(Clone)]
pub struct Options {
    /// Its address, such as `http://127.0.0.1:9000`, instead of that of the cloud. Of an Azure server of one's
    /// own the account stands behind it: `http://127.0.0.1:10000/ACCOUNT`.
    pub endpoint: Option<String>,
    /// The region of the bucket.
    pub region: Option<String>,
    /// Id and secret of a key of S3, or account and key of Azure, instead of those of the environment.
    pub key: Option<(String, String)>,
    /// Requests are not signed, for public objects.
    pub anonymous: bool,
    /// The bucket stands in the path of a request, not in the name of its host. Default: with an
    /// endpoint of one's own.
    pub path_style: Option<bool>,
    /// Ends calls that wait.
    pub stop: Stop,
}

impl Default for Options {
    fn default() -> Self {
        Self { endpoint: None, region: None, key: None, anonymous: false, path_style: None, stop: Arc::new(|| false) }
    }
}

/// A bucket, or the files of this host. Clones share their connections.
#[derive(Clone)]
pub struct Store {
    pub(crate) url: Url,
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// `None` where they know no parts, or take no metadata.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
    pub(crate) conditions: Conditions,
    odd_keys: OddKeys,
    pub(crate) stop: Stop,
    /// Whether all parts of an object must have the same length, as those of Cloudflare R2.
    pub(crate) even_parts: bool,
}

impl Store {
    /// Opens the bucket of `url`. Nothing is asked of the store yet.
    ///
    /// # Errors
    /// There are no credentials, or a setting is invalid.
    pub fn open(url: &Url, options: &Options) -> io::Result<Self> {
        // The clients of a store belong to a runtime.
        let handle = runtime::handle()?;
        let _entered = handle.enter();
        let conditions = Conditions::of_bucket(&url.bucket);
        let odd_keys = OddKeys::default();
        let signer = Signer::default();
        let connector =
            Connector { conditions: conditions.clone(), odd_keys: Arc::clone(&odd_keys), signer: signer.clone() };
        let endpoint = options.endpoint.as_deref();
        let cannot = |e: &object_store::Error| {
            io::Error::new(io::ErrorKind::InvalidInput, explain(e, Act::Read, url).to_string())
        };
        let (objects, parts, even_parts): (Arc<dyn ObjectStore>, Option<Arc<dyn MultipartStore>>, bool) = match url
            .scheme
        {
            Scheme::S3 => {
                let (builder, at) = s3(url, options)?;
                let store = builder.with_http_connector(connector).build().map_err(|e| cannot(&e))?;
                let store = Arc::new(store);
                (Arc::clone(&store) as _, Some(store as _), at.is_some_and(|at| at.contains("r2.cloudflarestorage")))
            }
            Scheme::Gs => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(&url.bucket);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_config(GoogleConfigKey::BaseUrl, endpoint);
                }
                let builder = builder.with_skip_signature(options.anonymous).with_retry(retry());
                let builder = builder.with_client_options(client(endpoint)).with_http_connector(connector);
                let store = Arc::new(builder.build().map_err(|e| cannot(&e))?);
                (Arc::clone(&store) as _, Some(store as _), false)
            }
            Scheme::Az => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(&url.bucket);
                if let Some(endpoint) = endpoint {
                    builder = builder.with_config(AzureConfigKey::Endpoint, endpoint);
                }
                if let Some((account, key)) = &options.key {
                    builder = builder.with_account(account).with_access_key(key);
                }
                let builder = builder.with_skip_signature(options.anonymous).with_retry(retry());
                let builder = builder.with_client_options(client(endpoint)).with_http_connector(connector);
                let account = builder.get_config_value(&AzureConfigKey::AccountName);
                let store = Arc::new(builder.build().map_err(|e| cannot(&e))?);
                signer.set(store.credentials(), account);
                (store as _, None, false)
            }
            Scheme::File => (Arc::new(LocalFileSystem::new()), None, false),
        };
        let url = url.with_key("");
        Ok(Self { url, objects, parts, conditions, odd_keys, stop: Arc::clone(&options.stop), even_parts })
    }

    /// The bucket.
    pub fn bucket(&self) -> &Url {
        &self.url
    }

    /// The address of `key`.
    pub fn url(&self, key: &str) -> Url {
        self.url.with_key(key)
    }

    /// All objects whose keys begin with `prefix`, whole components of it only: `a/b` is about `a/b/c`, not `a/bc`.
    ///
    /// # Errors
    /// The store fails, or there is no such bucket.
    pub fn list(&self, prefix: &str) -> io::Result<Vec<Object>> {
        let path = path(prefix)?;
        let prefix = (!path.is_root()).then_some(path);
        let list = async {
            let mut stream = self.objects.list(prefix.as_ref());
            let mut listed = Listed::default();
            while let Some(object) = stream.next().await {
                if !listed.add(object_of(object?)) {
                    return Ok(Err(io::Error::other(listed.too_many())));
                }
            }
            Ok(Ok(listed.objects))
        };
        let listed = runtime::wait(&self.stop, PAGES.scope(RefCell::default(), list))?;
        listed.map_err(|e: object_store::Error| explain(&e, Act::List, &self.url))?
    }

    /// Keys that lists of this store left out since no file can have them: with an empty component, `.`,
    /// `..` or control characters. They are forgotten.
    pub fn take_odd_keys(&self) -> Vec<String> {
        std::mem::take(&mut self.odd_keys.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What `key` is; `None` if there is no such object.
    ///
    /// # Errors
    /// The store fails.
    pub fn head(&self, key: &str) -> io::Result<Option<Head>> {
        let path = path(key)?;
        runtime::wait(&self.stop, head(&self.objects, &path))?.map_err(|e| explain(&e, Act::Read, &self.url(key)))
    }

    /// As [`Store::head`], of many objects at a time, in their order.
    ///
    /// # Errors
    /// The store fails.
    pub fn heads(&self, keys: &[&str]) -> io::Result<Vec<Option<Head>>> {
        let paths = keys.iter().map(|key| path(key)).collect::<io::Result<Vec<_>>>()?;
        let heads = runtime::wait(&self.stop, async {
            let each = paths.iter().map(|path| head(&self.objects, path));
            futures_util::stream::iter(each).buffered(HEADS).collect::<Vec<_>>().await
        })?;
        let named = keys.iter().zip(heads);
        named.map(|(key, head)| head.map_err(|e| explain(&e, Act::Read, &self.url(key)))).collect()
    }

    /// Removes an object; one that is not there is removed already.
    ///
    /// # Errors
    /// The store fails.
    pub fn delete(&self, key: &str) -> io::Result<()> {
        let path = path(key)?;
        match runtime::wait(&self.stop, self.objects.delete(&path))? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(e) => Err(explain(&e, Act::Delete, &self.url(key))),
        }
    }
}

/// A key as `object_store` takes it.
pub(crate) fn path(key: &str) -> io::Result<Path> {
    Path::parse(key).map_err(|_| {
        let text = "a key with an empty component, `.`, `..` or control characters cannot be used";
        io::Error::new(io::ErrorKind::InvalidInput, text)
    })
}

pub(crate) async fn head(objects: &Arc<dyn ObjectStore>, path: &Path) -> object_store::Result<Option<Head>> {
    match objects.get_opts(path, GetOptions { head: true, ..GetOptions::default() }).await {
        Ok(result) => Ok(Some(head_of(&result))),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}

/// What an answer says of its object.
pub(crate) fn head_of(result: &GetResult) -> Head {
    let metadata = result.attributes.iter().filter_map(|(name, value)| match name {
        Attribute::Metadata(name) => Some((meta::known(name), value.to_string())),
        _ => None,
    });
    Head { metadata: metadata.collect(), object: object_of(result.meta.clone()) }
}

pub(crate) fn object_of(meta: ObjectMeta) -> Object {
    Object {
        key: meta.location.to_string(),
        len: meta.size,
        written: meta.last_modified.into(),
        version: Version { etag: meta.e_tag, number: meta.version },
    }
}

fn retry() -> RetryConfig {
    let backoff = BackoffConfig { init_backoff: PAUSE, max_backoff: PAUSE_MAX, base: 2.0 };
    RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_FOR }
}

fn client(endpoint: Option<&str>) -> ClientOptions {
    service::options(endpoint.is_some_and(|endpoint| endpoint.starts_with("http://")))
}

/// The settings of S3, and its endpoint if that is not Amazon's.
fn s3(url: &Url, options: &Options) -> io::Result<(AmazonS3Builder, Option<String>)> {
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(&url.bucket);
    if let Some((id, secret)) = &options.key {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
    }
    let profile = Profile::load()?;
    let given = |builder: &AmazonS3Builder, key| builder.get_config_value(&key);
    let has_keys = |builder: &AmazonS3Builder| given(builder, AmazonS3ConfigKey::AccessKeyId).is_some();
    if !has_keys(&builder)
        && let (Some(id), Some(secret)) = (&profile.access_key_id, &profile.secret_access_key)
    {
        builder = builder.with_access_key_id(id).with_secret_access_key(secret);
        if let Some(token) = &profile.session_token {
            builder = builder.with_token(token);
        }
    }
    if let Some(region) = options
        .region
        .as_ref()
        .or(profile.region.as_ref().filter(|_| given(&builder, AmazonS3ConfigKey::Region).is_none()))
    {
        builder = builder.with_region(region);
    }
    let of_env =
        given(&builder, AmazonS3ConfigKey::S3Endpoint).or_else(|| given(&builder, AmazonS3ConfigKey::Endpoint));
    let endpoint = options.endpoint.clone().or(of_env).or_else(|| profile.endpoint.clone());
    let path_style = options.path_style.or(match profile.addressing_style.as_deref() {
        Some("path") => Some(true),
        Some("virtual") => Some(false),
        _ => None,
    });
    // A certificate of Amazon does not cover names with dots.
    let path_style = path_style.unwrap_or(endpoint.is_some() || url.bucket.contains('.'));
    builder = builder.with_virtual_hosted_style_request(!path_style);
    if let Some(endpoint) = &endpoint {
        // With the bucket in the name of the host, it is part of the endpoint.
        let whole = match endpoint.split_once("://") {
            Some((scheme, host)) if !path_style => format!("{scheme}://{}.{host}", url.bucket),
            Some(_) => endpoint.clone(),
            None => {
                let text = format!("the endpoint '{endpoint}' is not an address such as https://HOST:PORT");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
            }
        };
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, whole);
    }
    builder = builder.with_retry(retry()).with_client_options(client(endpoint.as_deref()));
    // Encryption protects the bytes of a part; a hash of it would take a third of a core at 1 Gbit/s.
    builder = builder.with_unsigned_payload(!endpoint.as_deref().is_some_and(|e| e.starts_with("http://")));
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let is_signed = given(&builder, AmazonS3ConfigKey::SkipSignature).is_none_or(|skip| skip != "true");
    if is_signed && !has_keys(&builder) {
        find_credentials(&builder, &profile, url)?;
    }
    Ok((builder, endpoint))
}

/// Fails at once where nothing gives credentials: the library would ask a host that is not there.
fn find_credentials(builder: &AmazonS3Builder, profile: &Profile, url: &Url) -> io::Result<()> {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let others =
        ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"];
    if others.into_iter().any(is_set) || builder.get_config_value(&AmazonS3ConfigKey::MetadataEndpoint).is_some() {
        return Ok(());
    }
    let is_disabled = std::env::var("AWS_EC2_METADATA_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    let host = SocketAddr::from(([169, 254, 169, 254], 80));
    if profile.elsewhere.is_none() && !is_disabled && TcpStream::connect_timeout(&host, METADATA_FOR).is_ok() {
        return Ok(());
    }
    let text = match &profile.elsewhere {
        Some(key) => format!(
            "the profile gets its keys by {key}, which only the AWS tools follow; \
             run: eval \"$(aws configure export-credentials --format env)\""
        ),
        None => format!(
            "no credentials for s3://{}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; \
             for public objects give --no-sign-request",
            url.bucket
        ),
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}
