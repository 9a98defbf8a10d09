//! The supported part of the web configuration file of Prometheus exporters: TLS from a certificate
//! and its key, and users with bcrypt hashes of their passwords. Anything else is refused, because
//! it may be meant to restrict access.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use marked_yaml::types::{MarkedMappingNode, MarkedScalarNode};
use marked_yaml::{Node, Span};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Bytes of the file; even one with every user of a large site is shorter.
const FILE_MAX: u64 = 1 << 20;
/// Users; more than this is no plausible list of readers of metrics.
const USERS_MAX: usize = 1000;
/// The greatest cost of a hash: a second or so of a CPU, for each password that is tried.
const COST_MAX: u32 = 14;

/// The content of the file.
#[derive(Default)]
pub(super) struct Config {
    pub(super) tls: Option<Arc<ServerConfig>>,
    /// Names and hashes.
    pub(super) users: Vec<(String, String)>,
}

/// The file, for error messages with a position.
struct File<'a> {
    path: &'a Path,
}

impl File<'_> {
    fn at(&self, span: &Span) -> String {
        let line = span.start().map_or(1, marked_yaml::Marker::line);
        format!("{}, line {line}", self.path.display())
    }

    fn mapping<'n>(&self, key: &str, node: &'n Node) -> Result<&'n MarkedMappingNode> {
        let at = self.at(node.span());
        node.as_mapping().with_context(|| format!("{at}: {key}: expected keys with values"))
    }

    fn text<'n>(&self, key: &str, node: &'n Node) -> Result<&'n MarkedScalarNode> {
        let at = self.at(node.span());
        node.as_scalar().with_context(|| format!("{at}: {key}: expected a string"))
    }
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Config> {
        let size = std::fs::metadata(path).with_context(|| path.display().to_string())?.len();
        ensure!(size <= FILE_MAX, "{}: more than {FILE_MAX} bytes", path.display());
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Config::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Config> {
        let file = File { path };
        let mut config = Config::default();
        if text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
            return Ok(config);
        }
        let options = marked_yaml::LoaderOptions::default().error_on_duplicate_keys(true);
        let node = marked_yaml::parse_yaml_with_options(0, text, options)
            .map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        for (key, value) in file.mapping("the file", &node)?.iter() {
            match key.as_str() {
                "tls_server_config" => config.tls = Some(tls(&file, value)?),
                "basic_auth_users" => config.users = users(&file, value)?,
                other => bail!(
                    "{}: {other}: not supported; the supported keys are tls_server_config and \
                     basic_auth_users",
                    file.at(key.span())
                ),
            }
        }
        Ok(config)
    }
}

fn tls(file: &File<'_>, node: &Node) -> Result<Arc<ServerConfig>> {
    let (mut certificate, mut key_file) = (None, None);
    for (key, value) in file.mapping("tls_server_config", node)?.iter() {
        let name = key.as_str();
        let place = match name {
            "cert_file" => &mut certificate,
            "key_file" => &mut key_file,
            other => bail!(
                "{}: {other}: not supported; the supported keys are cert_file and key_file",
                file.at(key.span())
            ),
        };
        let text = file.text(name, value)?;
        // Relative to this file's directory, unless the path is absolute.
        let dir = file.path.parent().unwrap_or(Path::new("."));
        *place = Some((dir.join(text.as_str()), format!("{}: {name}", file.at(value.span()))));
    }
    let at = file.at(node.span());
    let missing = |name: &str| format!("{at}: tls_server_config: {name} is missing");
    let (certificate, certificate_at) = certificate.with_context(|| missing("cert_file"))?;
    let (key, key_at) = key_file.with_context(|| missing("key_file"))?;
    let chain = chain(&certificate).with_context(|| certificate_at.clone())?;
    let key = PrivateKeyDer::from_pem_file(&key)
        .with_context(|| format!("{}: expected a private key as PEM", key.display()))
        .with_context(|| key_at.clone())?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("TLS")?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .with_context(|| {
            format!("{key_at}: it is not the key of cert_file, or its format is not supported")
        })?;
    Ok(Arc::new(config))
}

fn chain(path: &PathBuf) -> Result<Vec<CertificateDer<'static>>> {
    let expected = || format!("{}: expected certificates as PEM", path.display());
    let chain: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).with_context(expected)?.collect();
    let chain = chain.with_context(expected)?;
    ensure!(!chain.is_empty(), expected());
    Ok(chain)
}

fn users(file: &File<'_>, node: &Node) -> Result<Vec<(String, String)>> {
    let mut users = Vec::new();
    for (key, value) in file.mapping("basic_auth_users", node)?.iter() {
        let (name, at) = (key.as_str(), file.at(key.span()));
        ensure!(users.len() < USERS_MAX, "{at}: {name}: more than {USERS_MAX} users");
        ensure!(!name.contains(':'), "{at}: {name}: a user name must not contain a colon");
        let hash = file.text(name, value)?.as_str();
        // The error does not quote the value: it may be a password.
        let parts: bcrypt::HashParts = hash.parse().ok().with_context(|| {
            format!("{at}: {name}: expected a bcrypt hash, as `htpasswd -nB {name}` prints it")
        })?;
        let cost = parts.get_cost();
        ensure!(
            (4..=COST_MAX).contains(&cost),
            "{at}: {name}: the cost of the hash is {cost}; expected 4 to {COST_MAX}"
        );
        users.push((name.to_owned(), hash.to_owned()));
    }
    ensure!(!users.is_empty(), "{}: basic_auth_users: no users", file.at(node.span()));
    Ok(users)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        let path = Path::new("web.yml");
        let error = Config::parse(path, text).err().unwrap_or_else(|| panic!("it took {text}"));
        format!("{error:#}")
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line, what) in [
            ("tls_server_config:\n  cert_file: a\n", 2, "key_file is missing"),
            ("\nbasic_auth:\n  a: b\n", 2, "basic_auth: not supported"),
            ("tls_server_config:\n  cert_file: a\n  client_ca_file: b\n", 3, "client_ca_file: not"),
            ("basic_auth_users:\n  anna: secret\n", 2, "anna: expected a bcrypt hash"),
            ("basic_auth_users: [anna]\n", 1, "basic_auth_users: expected keys"),
            ("tls_server_config:\n  cert_file: none\n  key_file: none\n", 2, "cert_file: none"),
        ] {
            let said = refusal(text);
            assert!(said.starts_with(&format!("web.yml, line {line}: ")), "{said}");
            assert!(said.contains(what), "{said}");
            assert!(!said.contains("secret"), "{said}");
        }
        assert!(refusal("a: b: c").starts_with("web.yml: "));
        assert!(refusal("basic_auth_users:\n  anna: 1\n  anna: 2\n").contains("web.yml"));
    }

    #[test]
    fn an_empty_file_is_valid_and_costs_are_limited() {
        let parse = |text: &str| Config::parse(Path::new("web.yml"), text);
        assert!(parse("# nothing\n").expect("it is fine").users.is_empty());
        let hash = bcrypt::hash("secret", 4).expect("it hashes");
        let config = parse(&format!("basic_auth_users:\n  anna: {hash}\n")).expect("it is fine");
        assert_eq!(config.users, [("anna".to_owned(), hash.clone())]);
        let dear = hash.replace("$04$", "$31$");
        assert!(refusal(&format!("basic_auth_users:\n  anna: {dear}\n")).contains("cost"));
    }
}
