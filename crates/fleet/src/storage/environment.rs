//! Credentials and endpoints, from the variables that other tools take.
//!
//! In:  the process's environment. Out: a [`Bucket`].
//!
//! | storage | variables, as far as they are not those of `object_store` |
//! | --- | --- |
//! | S3 | `AWS_…`; an endpoint on this machine may speak HTTP without `AWS_ALLOW_HTTP` |
//! | Google | `GOOGLE_…`; `STORAGE_EMULATOR_HOST`: an emulator, to which nothing is signed |
//! | Azure | `AZURE_…`; `AZURE_STORAGE_ACCOUNT`, `AZURE_STORAGE_KEY`, `AZURE_STORAGE_CONNECTION_STRING` |
//!
//! A machine's own service is asked for credentials where no variable has any, and asked twice, not for minutes.

use std::sync::Arc;

use object_store::ClientOptions;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use url::Url;

use super::trouble::StorageError;
use super::{AGAIN, Bucket, CREDENTIALS_AGAIN, Clients, client_options, retrying, variables};
use crate::address::{Address, Kind};

/// What the process's environment says of a kind of storage: another makes another connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Environment(Vec<(String, String)>);

impl Environment {
    pub(super) fn of(kind: Kind) -> Self {
        Self(match kind {
            Kind::S3 => variables(&["AWS_"]),
            Kind::Google => variables(&["GOOGLE_", "STORAGE_EMULATOR_HOST"]),
            Kind::Azure => variables(&["AZURE_", "AZURITE_"]),
            Kind::Web => Vec::new(),
        })
    }

    fn get(&self, names: &[&str]) -> Option<&str> {
        let value = |name: &&str| self.0.iter().find(|it| it.0 == **name).map(|it| &*it.1);
        names.iter().find_map(value).filter(|it| !it.is_empty())
    }

    /// Variables in `object_store`'s words.
    fn options<'a, K: std::str::FromStr + 'a>(&'a self) -> impl Iterator<Item = (K, &'a str)> {
        let known = |(name, value): &'a (String, String)| {
            Some((name.to_ascii_lowercase().parse().ok()?, &**value))
        };
        self.0.iter().filter(|it| !it.1.is_empty()).filter_map(known)
    }

    /// The bucket of an address.
    pub(super) fn bucket(
        &self,
        address: &Address<'_>,
        clients: &Clients,
    ) -> Result<Bucket, StorageError> {
        let kind = address.kind;
        let built = match kind {
            Kind::S3 => self.s3(address, clients),
            Kind::Google => self.google(address, clients),
            Kind::Azure => self.azure(address, clients),
            Kind::Web => return web(address.base, clients),
        };
        built.map_err(|error| StorageError::of(kind, &error))
    }

    fn s3(&self, address: &Address<'_>, clients: &Clients) -> object_store::Result<Bucket> {
        let mut builder = AmazonS3Builder::new().with_client_options(client_options());
        for (key, value) in self.options::<AmazonS3ConfigKey>() {
            builder = builder.with_config(key, value);
        }
        let endpoint = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];
        if self.get(&endpoint).is_some_and(is_here) {
            builder = builder.with_allow_http(true);
        }
        let builder = builder
            .with_bucket_name(address.bucket)
            .with_http_connector(clients.clone())
            .with_retry(retrying(CREDENTIALS_AGAIN));
        let credentials = Arc::clone(builder.clone().build()?.credentials());
        let store = builder.with_credentials(credentials).with_retry(retrying(AGAIN)).build()?;
        let store = Arc::new(store);
        Ok(Bucket { kind: Kind::S3, objects: store.clone(), names: Some(store) })
    }

    fn google(&self, address: &Address<'_>, clients: &Clients) -> object_store::Result<Bucket> {
        let mut builder = GoogleCloudStorageBuilder::new();
        let mut options = client_options();
        let emulator =
            self.get(&["STORAGE_EMULATOR_HOST"]).map(|host| match host.contains("://") {
                true => host.trim_end_matches('/').to_owned(),
                false => format!("http://{}", host.trim_end_matches('/')),
            });
        let endpoint = emulator.as_deref().or_else(|| self.get(&["GOOGLE_BASE_URL"]));
        if endpoint.is_some_and(is_here) {
            options = options.with_allow_http(true);
        }
        builder = builder.with_client_options(options);
        for (key, value) in self.options::<GoogleConfigKey>() {
            builder = builder.with_config(key, value);
        }
        if let Some(emulator) = emulator {
            builder = builder.with_base_url(&emulator).with_skip_signature(true);
        }
        let builder = builder
            .with_bucket_name(address.bucket)
            .with_http_connector(clients.clone())
            .with_retry(retrying(CREDENTIALS_AGAIN));
        let credentials = Arc::clone(builder.clone().build()?.credentials());
        let store = builder.with_credentials(credentials).with_retry(retrying(AGAIN)).build()?;
        let store = Arc::new(store);
        Ok(Bucket { kind: Kind::Google, objects: store.clone(), names: Some(store) })
    }

    fn azure(&self, address: &Address<'_>, clients: &Clients) -> object_store::Result<Bucket> {
        let mut builder = MicrosoftAzureBuilder::new().with_client_options(client_options());
        let mut endpoint = self.get(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"]);
        let said = self.get(&["AZURE_STORAGE_CONNECTION_STRING"]).unwrap_or_default();
        for (name, value) in said.split(';').filter_map(|part| part.split_once('=')) {
            let key = match name {
                "AccountName" => AzureConfigKey::AccountName,
                "AccountKey" => AzureConfigKey::AccessKey,
                "SharedAccessSignature" => AzureConfigKey::SasKey,
                "BlobEndpoint" => {
                    endpoint = Some(value);
                    AzureConfigKey::Endpoint
                }
                _ => continue,
            };
            builder = builder.with_config(key, value);
        }
        for (name, key) in [
            ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
            ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
        ] {
            if let Some(value) = self.get(&[name]) {
                builder = builder.with_config(key, value);
            }
        }
        for (key, value) in self.options::<AzureConfigKey>() {
            builder = builder.with_config(key, value);
        }
        if endpoint.is_some_and(is_here) {
            builder = builder.with_allow_http(true);
        }
        builder = match address.bucket.contains('@') {
            true => builder.with_url(address.base),
            false => builder.with_container_name(address.bucket),
        };
        let builder =
            builder.with_http_connector(clients.clone()).with_retry(retrying(CREDENTIALS_AGAIN));
        let credentials = Arc::clone(builder.clone().build()?.credentials());
        let store = builder.with_credentials(credentials).with_retry(retrying(AGAIN)).build()?;
        let store = Arc::new(store);
        Ok(Bucket { kind: Kind::Azure, objects: store.clone(), names: Some(store) })
    }
}

/// One file of a web server.
pub(super) fn web(address: &str, clients: &Clients) -> Result<Bucket, StorageError> {
    let store = HttpBuilder::new()
        .with_url(address)
        .with_client_options(web_options(address))
        .with_http_connector(clients.clone())
        .with_retry(retrying(AGAIN))
        .build();
    let store = store.map_err(|error| StorageError::of(Kind::Web, &error))?;
    Ok(Bucket { kind: Kind::Web, objects: Arc::new(store), names: None })
}

/// Whoever writes `http` means it; nobody else is sent there.
fn web_options(address: &str) -> ClientOptions {
    client_options().with_allow_http(address.starts_with("http://"))
}

/// Whether an endpoint is on this machine and speaks HTTP, as emulators do: nothing goes over a network.
fn is_here(endpoint: &str) -> bool {
    let Ok(url) = Url::parse(endpoint) else { return false };
    let here = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && here
}

#[cfg(test)]
mod tests {
    use object_store::ClientConfigKey;

    use super::*;

    #[test]
    fn https_does_not_end_at_http() {
        let may = |address| web_options(address).get_config_value(&ClientConfigKey::AllowHttp);
        assert_eq!(may("http://h/x").as_deref(), Some("true"));
        assert_eq!(may("https://h/x").as_deref(), Some("false"));
    }

    #[test]
    fn http_is_for_this_machine_alone() {
        for here in ["http://127.0.0.1:9000", "http://localhost", "http://[::1]:1/x"] {
            assert!(is_here(here), "{here}");
        }
        for there in ["https://127.0.0.1", "http://10.0.0.1", "http://localhost.evil.org", "x"] {
            assert!(!is_here(there), "{there}");
        }
    }
}
