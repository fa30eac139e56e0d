//! The members of this workspace, by `cargo metadata`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// The workspace that this binary was built in.
pub(crate) struct Workspace {
    pub(crate) root: PathBuf,
    /// In the order of their names.
    pub(crate) members: Vec<Member>,
    /// Oldest toolchain that it supports, of which all members say the same.
    pub(crate) rust_version: String,
}

/// One package.
pub(crate) struct Member {
    /// As in its manifest: `copyrpc-wire`.
    pub(crate) package: String,
    /// The folder of its manifest, relative to the root.
    pub(crate) dir: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// Names of its integration tests, in order.
    pub(crate) tests: Vec<String>,
    pub(crate) has_benches: bool,
    /// `[package.metadata.xtask]`, or null.
    pub(crate) settings: Value,
}

/// One line of a table of dependencies, those of tests included.
#[derive(Clone)]
pub(crate) struct Dependency {
    pub(crate) package: String,
    /// Whether tests, examples and benches alone have it.
    pub(crate) is_dev: bool,
}

impl Workspace {
    /// Asks cargo, without resolving or downloading anything.
    pub(crate) fn load() -> Result<Self> {
        let output = Command::new("cargo")
            .args(["metadata", "--no-deps", "--format-version=1"])
            .output()
            .context("cannot start `cargo metadata`")?;
        if !output.status.success() {
            bail!("`cargo metadata` failed:\n{}", String::from_utf8_lossy(&output.stderr));
        }
        let metadata =
            serde_json::from_slice(&output.stdout).context("`cargo metadata` is not JSON")?;
        Self::parse(&metadata)
    }

    fn parse(metadata: &Value) -> Result<Self> {
        let root = PathBuf::from(text(metadata, "workspace_root")?);
        let mut members = metadata["packages"]
            .as_array()
            .context("no `packages` in the metadata")?
            .iter()
            .map(|package| Member::parse(package, &root))
            .collect::<Result<Vec<_>>>()?;
        members.sort_by(|a, b| a.package.cmp(&b.package));
        let rust_version = text(&metadata["packages"][0], "rust_version")?.to_owned();
        Ok(Self { root, members, rust_version })
    }

    /// `target/NAME`: cargo's target folder for builds with other flags than the usual.
    pub(crate) fn target_dir(&self, name: &str) -> PathBuf {
        self.root.join("target").join(name)
    }

    /// Every file of the tree that git does not ignore, relative to the root and in order.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>> {
        let output = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&self.root)
            .output()
            .context("cannot start `git ls-files`: tidy judges the files that git knows")?;
        ensure!(
            output.status.success(),
            "`git ls-files` failed: run inside a git checkout\n{}",
            String::from_utf8_lossy(&output.stderr),
        );
        let names = String::from_utf8(output.stdout).context("a file name is not UTF-8")?;
        let mut files: Vec<_> = names
            .split_terminator('\0')
            .map(PathBuf::from)
            .filter(|path| self.root.join(path).is_file()) // deleted, not yet committed
            .collect();
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// The text of a file, or `None` if it is not UTF-8.
    pub(crate) fn read_text(&self, path: &Path) -> Result<Option<String>> {
        let bytes = fs::read(self.root.join(path))
            .with_context(|| format!("cannot read {}", path.display()))?;
        Ok(String::from_utf8(bytes).ok())
    }

    /// Members with `[package.metadata.xtask] KEY = true`.
    pub(crate) fn members_with(&self, key: &str) -> Vec<&Member> {
        self.members.iter().filter(|member| member.settings[key] == Value::Bool(true)).collect()
    }
}

impl Member {
    fn parse(package: &Value, root: &Path) -> Result<Self> {
        let manifest = PathBuf::from(text(package, "manifest_path")?);
        let dir = manifest.parent().and_then(|dir| dir.strip_prefix(root).ok());
        let mut tests = target_names(package, "test");
        tests.sort();
        Ok(Self {
            package: text(package, "name")?,
            dir: dir.context("a member lies outside the workspace")?.to_path_buf(),
            dependencies: package["dependencies"]
                .as_array()
                .context("no `dependencies` in the metadata")?
                .iter()
                .map(Dependency::parse)
                .collect::<Result<_>>()?,
            tests,
            has_benches: !target_names(package, "bench").is_empty(),
            settings: package["metadata"]["xtask"].clone(),
        })
    }

    /// Its name in the workspace: `wire`.
    pub(crate) fn short_name(&self) -> &str {
        self.package.strip_prefix("copyrpc-").unwrap_or(&self.package)
    }

    /// Integration tests that are meant for `--cfg loom`.
    pub(crate) fn loom_tests(&self) -> Vec<&str> {
        self.tests.iter().map(String::as_str).filter(|name| name.contains("loom")).collect()
    }
}

impl Dependency {
    fn parse(dependency: &Value) -> Result<Self> {
        Ok(Self { package: text(dependency, "name")?, is_dev: dependency["kind"] == "dev" })
    }
}

fn target_names(package: &Value, kind: &str) -> Vec<String> {
    let targets = package["targets"].as_array().map(Vec::as_slice).unwrap_or_default();
    targets
        .iter()
        .filter(|target| target["kind"][0] == kind)
        .filter_map(|target| target["name"].as_str().map(String::from))
        .collect()
}

fn text(value: &Value, key: &str) -> Result<String> {
    let text = value[key].as_str().with_context(|| format!("no `{key}` in the metadata"))?;
    Ok(text.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ring() -> Value {
        json!({
            "name": "copyrpc-ring",
            "rust_version": "1.89",
            "manifest_path": "/ws/crates/ring/Cargo.toml",
            "metadata": { "xtask": { "miri": true, "asan": false } },
            "dependencies": [
                { "name": "copyrpc-memory", "kind": null },
                { "name": "proptest", "kind": "dev" },
            ],
            "targets": [
                { "name": "ring_loom", "kind": ["test"] },
                { "name": "model", "kind": ["test"] },
                { "name": "ring", "kind": ["bench"] },
            ],
        })
    }

    #[test]
    fn a_member_is_read_from_the_metadata() {
        let metadata = json!({ "workspace_root": "/ws", "packages": [ring()] });
        let workspace = Workspace::parse(&metadata).unwrap();
        assert_eq!(workspace.rust_version, "1.89");
        let ring = &workspace.members[0];
        assert_eq!(ring.dir, Path::new("crates/ring"));
        assert_eq!(ring.loom_tests(), ["ring_loom"]);
        let packages = ring.dependencies.iter().map(|dependency| dependency.package.as_str());
        assert_eq!(packages.collect::<Vec<_>>(), ["copyrpc-memory", "proptest"]);
        assert!(ring.has_benches);
        assert_eq!(workspace.members_with("miri").len(), 1);
        assert!(workspace.members_with("asan").is_empty());
    }

    #[test]
    fn a_member_outside_the_root_is_an_error() {
        let metadata = json!({ "workspace_root": "/elsewhere", "packages": [ring()] });
        assert!(Workspace::parse(&metadata).is_err());
    }
}
