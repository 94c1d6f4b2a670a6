//! Options of object stores, for all commands that take their URLs.

use clap::Args as ClapArgs;

#[derive(ClapArgs, Clone, Default)]
#[command(next_help_heading = "Object stores (s3://BUCKET/KEY, gs://, az://)")]
pub(crate) struct StoreArgs {
    /// Address of the store, such as http://127.0.0.1:9000, for az:// with the account: http://127.0.0.1:10000/ACCOUNT
    /// [default: $AWS_ENDPOINT_URL, or that of the cloud]
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,
    /// Region of the bucket [default: $AWS_REGION, or that of the profile]
    #[arg(long, value_name = "NAME")]
    pub(crate) region: Option<String>,
    /// Do not sign requests: for public objects
    #[arg(long)]
    pub(crate) no_sign_request: bool,
    /// Send the bucket in the path, not in the name of the host [default: with an endpoint of one's own]
    #[arg(long)]
    pub(crate) path_style: bool,
}

impl StoreArgs {
    /// The same for another process of this program.
    pub(crate) fn words(&self) -> Vec<&str> {
        let texts = [("--endpoint", &self.endpoint), ("--region", &self.region)];
        let texts = texts.into_iter().filter_map(|(name, text)| Some([name, text.as_deref()?])).flatten();
        let flags = [("--no-sign-request", self.no_sign_request), ("--path-style", self.path_style)];
        texts.chain(flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| name)).collect()
    }
}
