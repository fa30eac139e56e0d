//! Recipes of packages: where the tools that build them are missing, at least what they name has to exist.

use std::{env, fs, path::PathBuf, process::Command};

use yaml_rust2::{Yaml, YamlLoader};

const RULES: &str = "packaging/debian/rules";
const CONTAINER: &str = "packaging/Containerfile";
const SPACK: &str = "packaging/spack/package.py";

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Words of a recipe, without the quotes of any language.
fn words(text: &str) -> Vec<&str> {
    let is_between = |c: char| c.is_whitespace() || "\"'(),[]".contains(c);
    text.split(is_between).filter(|word| !word.is_empty()).collect()
}

#[test]
fn every_file_that_a_recipe_copies_exists() {
    for recipe in [RULES, CONTAINER, SPACK] {
        let text = text(recipe);
        let is_ours = |word: &&str| {
            ["crates/", "docs/", "packaging/", "LICENSE-"]
                .iter()
                .any(|start| word.starts_with(start))
        };
        let ours: Vec<_> = words(&text).into_iter().filter(is_ours).collect();
        assert!(!ours.is_empty(), "{recipe}");
        for path in ours {
            // A loop over names, in the rules.
            let names = match path.contains("$$file") {
                true => vec![
                    path.replace("$$file", "copyrpcConfig"),
                    path.replace("$$file", "copyrpcConfigVersion"),
                ],
                false => vec![path.to_owned()],
            };
            for name in names {
                assert!(root().join(&name).exists(), "{recipe} names {name}");
            }
        }
    }
}

#[test]
fn every_crate_and_profile_that_a_recipe_builds_exists() {
    let manifest = text("Cargo.toml");
    for recipe in [RULES, CONTAINER, SPACK] {
        let text = text(recipe);
        let words = words(&text);
        let after = |option: &str| -> Vec<&str> {
            let pairs = words.windows(2).filter(|pair| pair[0] == option);
            pairs.map(|pair| pair[1]).collect()
        };
        assert!(!after("-p").is_empty() && !after("--profile").is_empty(), "{recipe}");
        for package in after("-p") {
            // What `mkdir` has after its own -p is none.
            let Some(folder) = package.strip_prefix("copyrpc-") else { continue };
            let own = match package {
                // The binary of the laboratory.
                "copyrpc-lab" => "lab/cli".to_owned(),
                _ if root().join("crates").join(folder).exists() => format!("crates/{folder}"),
                _ => format!("lab/{folder}"),
            };
            let own = self::text(&format!("{own}/Cargo.toml"));
            assert!(own.contains(&format!("name = \"{package}\"")), "{recipe}: {package}");
        }
        for profile in after("--profile") {
            assert!(manifest.contains(&format!("[profile.{profile}]")), "{recipe}: {profile}");
        }
    }
}

#[test]
fn the_debian_package_has_the_version_of_the_crates_and_well_formed_files() {
    let version = concat!("copyrpc (", env!("CARGO_PKG_VERSION"), "-");
    assert!(text("packaging/debian/changelog").starts_with(version), "{version}");
    for paragraph in text("packaging/debian/control").split("\n\n") {
        let is_field = |line: &str| line.starts_with(' ') || line.contains(": ");
        assert!(paragraph.lines().all(is_field), "{paragraph}");
        assert!(paragraph.starts_with("Source: ") || paragraph.contains("\nDescription: "));
    }
    let rules = text(RULES);
    assert!(rules.starts_with("#!/usr/bin/make -f\n"));
    let recipes = rules.lines().filter(|line| line.starts_with(char::is_whitespace));
    assert!(recipes.clone().count() > 10);
    for line in recipes {
        assert!(line.starts_with('\t'), "make wants a tab: {line}");
    }
}

#[test]
fn the_container_file_has_instructions_only() {
    let text = text(CONTAINER);
    let mut stages = 0;
    for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (instruction, arguments) = line.split_once(' ').expect("an instruction has arguments");
        let known = ["FROM", "WORKDIR", "COPY", "ARG", "ENV", "RUN", "USER", "ENTRYPOINT", "CMD"];
        assert!(known.contains(&instruction) && !arguments.is_empty(), "{line}");
        stages += u32::from(instruction == "FROM");
    }
    assert_eq!(stages, 2);
}

#[test]
fn the_spack_recipe_is_python() {
    let parse = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
    match Command::new("python3").args(["-c", parse]).arg(root().join(SPACK)).output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        Err(error) => {
            assert!(env::var_os("CI").is_none(), "no python3: {error}");
            println!("skipped: no python3: {error}");
        }
    }
}

/// The documents of a YAML file.
fn yaml(path: &str) -> Vec<Yaml> {
    YamlLoader::load_from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The value of a variable of a container.
fn variable<'a>(container: &'a Yaml, name: &str) -> &'a Yaml {
    let variables = container["env"].as_vec().unwrap();
    let found = variables.iter().find(|it| it["name"].as_str() == Some(name));
    &found.unwrap_or_else(|| panic!("{name} is not set"))["value"]
}

/// Each volume that a container mounts is one of its pod.
fn check_volumes(pod: &Yaml) {
    let names = |list: &Yaml| -> Vec<String> {
        let list = list.as_vec().into_iter().flatten();
        list.map(|it| it["name"].as_str().unwrap().to_owned()).collect()
    };
    let volumes = names(&pod["volumes"]);
    for kind in ["initContainers", "containers"] {
        for container in pod[kind].as_vec().into_iter().flatten() {
            let mounted = names(&container["volumeMounts"]);
            assert!(!mounted.is_empty() && mounted.iter().all(|it| volumes.contains(it)));
        }
    }
}

/// Daemon and client meet in one folder of the host as one user, as docs/containers.md says.
#[test]
fn the_daemons_and_the_client_of_kubernetes_fit_each_other() {
    let [config, daemons] = &yaml("packaging/kubernetes/daemons.yaml")[..] else {
        panic!("a ConfigMap and a DaemonSet")
    };
    let [client] = &yaml("packaging/kubernetes/client.yaml")[..] else { panic!("a pod") };
    let kinds = [config, daemons, client].map(|it| it["kind"].as_str().unwrap());
    assert_eq!(kinds, ["ConfigMap", "DaemonSet", "Pod"]);
    let template = &daemons["spec"]["template"];
    let labels = &daemons["spec"]["selector"]["matchLabels"];
    assert_eq!(*labels, template["metadata"]["labels"]);
    let pods = [&template["spec"], &client["spec"]];
    pods.into_iter().for_each(check_volumes);
    let user = |pod: &Yaml| pod["securityContext"]["runAsUser"].as_i64().unwrap();
    assert_eq!(user(pods[0]), user(pods[1]));
    let folder = |pod: &Yaml| variable(&pod["containers"][0], "COPYRPC_RUNTIME_DIR").clone();
    assert_eq!(folder(pods[0]), folder(pods[1]));
    let host = |pod: &Yaml| pod["volumes"][0]["hostPath"]["path"].as_str().unwrap().to_owned();
    assert_eq!(host(pods[0]), host(pods[1]));
    assert!(folder(pods[0]).as_str().unwrap().starts_with(&host(pods[0])));
    // Daemons are reached at the node's addresses; a client needs nothing of the host but the folder.
    assert_eq!(pods[0]["hostNetwork"].as_bool(), Some(true));
    for shared in ["hostNetwork", "hostPID", "hostIPC"] {
        assert!(pods[1][shared].is_badvalue(), "{shared}");
    }
    // As many ranks as the job has, and each variable is a knob.
    let ranks = config["data"]["ranks"].as_str().unwrap();
    let size = config["data"]["COPYRPC_SIZE"].as_str().unwrap();
    let numbers: Vec<_> = ranks.lines().map(|line| line.split(' ').nth(1).unwrap()).collect();
    let expected: Vec<_> = (0..size.parse::<u32>().unwrap()).map(|rank| rank.to_string()).collect();
    assert_eq!(numbers, expected);
    let known = |name: &str| daemon::config::KNOBS.iter().any(|knob| knob.env == name);
    for variable in pods[0]["containers"][0]["env"].as_vec().unwrap() {
        let name = variable["name"].as_str().unwrap();
        assert!(name == "NODE_NAME" || known(name), "{name}");
        if let Some(key) = variable["valueFrom"]["configMapKeyRef"]["key"].as_str() {
            assert!(!config["data"][key].is_badvalue(), "{key}");
        }
    }
}

/// systemd itself reads the unit, where it is installed.
#[test]
fn systemd_understands_the_unit() {
    let unit = root().join("docs/copyrpc@.service");
    let folder = env::temp_dir().join(format!("copyrpc-unit-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    // The program has to exist.
    let text = text("docs/copyrpc@.service").replace("ExecStart=copyrpc", "ExecStart=/bin/true");
    let instance = folder.join("copyrpc@root.service");
    fs::write(&instance, text).unwrap();
    let verified = Command::new("systemd-analyze").arg("verify").arg(&instance).output();
    let told = verified.map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
    fs::remove_dir_all(&folder).unwrap();
    let Ok(told) = told else {
        let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "there is no systemd-analyze; install systemd");
        eprintln!("skipped: there is no systemd-analyze; install systemd");
        return;
    };
    let of_unit: Vec<_> = told.lines().filter(|line| line.contains("copyrpc@")).collect();
    assert!(of_unit.is_empty(), "{}: {told}", unit.display());
}
