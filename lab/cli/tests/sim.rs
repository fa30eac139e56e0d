//! `copyrpc-lab sim` as users meet it.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.arg("sim").args(arguments).output().expect("the binary runs")
}

#[test]
fn sim_dct_prints_every_number() {
    let output = sim(&["dct", "--seed", "2"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("36 fitted (worst ") && text.contains("1 predicted"), "{text}");
    assert!(!text.contains("checked") && text.contains("trace "), "{text}");
    assert_whole_numbers(&text, 39);
}

/// No line is longer than 80 characters, and so many rows end with a number, an error and a class in one line.
fn assert_whole_numbers(text: &str, rows: usize) {
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let classes = ["fitted", "predicted", "missed", "shown", "MISSED", "CHANGED"];
    let whole = text.lines().filter(|line| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields.len() > 4
            && classes.contains(&fields[fields.len() - 1])
            && fields[fields.len() - 2] == "%"
            && fields[fields.len() - 3].parse::<f64>().is_ok()
    });
    assert_eq!(whole.count(), rows, "{text}");
}

#[test]
fn sim_dct_writes_json_that_names_reference_and_use() {
    let output = sim(&["dct", "--json", "-"]);
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 39);
    assert!(rows.iter().all(|row| row["reference"].is_f64() && row["simulated"].is_f64()));
    assert!(rows.iter().any(|row| row["standing"] == "Predicted"));
}

#[test]
fn sim_two_rank_tells_kinds_of_json_apart() {
    let output = sim(&["two-rank", "--matrix", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of_kind = |kind| rows.iter().filter(move |row| row["kind"] == kind);
    assert_eq!(of_kind("number").count() + of_kind("combination").count(), rows.len());
    assert!(of_kind("number").all(|row| row["reference"].is_f64()));
    assert!(of_kind("combination").all(|row| row["two_mops"].is_f64()));
    assert_eq!((of_kind("number").count(), of_kind("combination").count()), (32, 20));
    assert_eq!(of_kind("number").filter(|row| row["standing"] == "Shown").count(), 1);
    assert_eq!(of_kind("number").filter(|row| row["standing"] == "Missed").count(), 6);
}

#[test]
fn sim_cluster_repeats_itself_and_writes_a_timeline() {
    let small = ["cluster", "--nodes", "2", "--clients", "2", "--for", "100us", "--seed", "3"];
    let traces = [(); 2].map(|()| {
        let output = sim(&small);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        text.rsplit_once("trace ").unwrap().1.trim().to_owned()
    });
    assert_eq!(traces[0], traces[1]);
    let folder = std::env::temp_dir().join(format!("copyrpc-sim-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("run.json");
    let output = sim(&[&small[..], &["--trace", path.to_str().unwrap()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let timeline = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let timeline: serde_json::Value = serde_json::from_str(&timeline).unwrap();
    assert!(timeline["traceEvents"].as_array().unwrap().len() > 10);
}

#[test]
fn sim_cluster_runs_many_seeds_and_refuses_what_is_no_fault() {
    let many = ["cluster", "--seeds", "4", "--twice", "--nodes", "2", "--for", "50us"];
    let output = sim(&many);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("4 seeds from 1, each twice"));
    let output = sim(&["cluster", "--faults", "crush:1/0/0@1+2"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("is no fault"));
    assert_eq!(output.status.code(), Some(2));
    let output = sim(&["cluster", "--seeds", "0"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn sim_cluster_goes_on_where_an_earlier_run_has_stopped() {
    let folder = std::env::temp_dir().join(format!("copyrpc-seeds-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("seeds.log");
    let small = ["cluster", "--nodes", "2", "--clients", "1", "--for", "50us", "--threads", "1"];
    let run = |more: &[&str]| {
        let output = sim(&[&small[..], more].concat());
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), output.stderr)
    };
    let kept = ["--resume", path.to_str().unwrap()];
    let (_, none, _) = run(&[&kept[..], &["--for-wall", "0s"]].concat());
    assert!(none.starts_with("0 seeds from 1"), "{none}");
    let (_, part, _) = run(&[&kept[..], &["--seeds", "3"]].concat());
    assert!(part.starts_with("3 seeds from 1"), "{part}");
    let (_, rest, _) = run(&[&kept[..], &["--seeds", "6"]].concat());
    let (_, whole, _) = run(&["--seeds", "6"]);
    let trace =
        |text: &str| text.lines().next().unwrap().rsplit_once("trace ").unwrap().1.to_owned();
    assert!(rest.ends_with("\ndone: 1 to 6\n"), "{rest}");
    assert!(rest.starts_with("6 seeds from 1") && whole.starts_with("6 seeds from 1"), "{rest}");
    assert_eq!(trace(&rest), trace(&whole));
    let refused = |more: &[&str]| {
        let (code, _, error) = run(&[&kept[..], more].concat());
        assert_eq!(code, Some(1));
        assert!(String::from_utf8_lossy(&error).contains("keeps another run"), "{error:?}");
    };
    refused(&["--seeds", "6", "--twice"]);
    // What another commit has run is not mixed with what this one runs.
    let version =
        Command::new(env!("CARGO_BIN_EXE_copyrpc-lab")).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let version = version.trim().strip_prefix("copyrpc-lab ").unwrap();
    let log = std::fs::read_to_string(&path).unwrap();
    assert!(log.lines().next().unwrap().contains(version) && version.contains(" ("), "{log}");
    std::fs::write(&path, log.replace(version, "0.1.0 (another)")).unwrap();
    refused(&["--seeds", "6"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// One of them is killed in the middle, and one comes later.
#[test]
fn processes_with_one_log_run_each_seed_once() {
    const SEEDS: u64 = 400;
    let folder = std::env::temp_dir().join(format!("copyrpc-shared-seeds-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("seeds.log");
    let start = |seeds: u64| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
        command.args(["sim", "cluster", "--nodes", "2", "--clients", "1", "--for", "20us"]);
        command.args(["--threads", "1", "--seeds", &seeds.to_string(), "--resume"]).arg(&path);
        command.stdout(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut killed = start(SEEDS);
    let others = [start(SEEDS), start(SEEDS)];
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let lines = || std::fs::read_to_string(&path).unwrap_or_default();
    while !lines().contains("\"done\"") {
        assert!(std::time::Instant::now() < deadline, "nothing is done");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    for process in others {
        assert!(process.wait_with_output().unwrap().status.success());
    }
    let last = start(SEEDS).wait_with_output().unwrap();
    let text = String::from_utf8(last.stdout).unwrap();
    let log = lines();
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
    let files = files.collect::<Vec<_>>();
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(text.contains("\ndone: 1 to 400\n"), "{text}");
    assert!(files.len() <= 2, "only the place of the one that was killed may be left: {files:?}");
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let done = lines.filter_map(|line| line.get("done").cloned()).collect::<Vec<_>>();
    let mut times = vec![0; usize::try_from(SEEDS).unwrap()];
    for one in &done {
        let (first, count) = (one["first"].as_u64().unwrap(), one["count"].as_u64().unwrap());
        (first..first + count).for_each(|seed| times[usize::try_from(seed).unwrap()] += 1);
    }
    assert!(times.iter().all(|times| *times == 1), "{done:?}");
    let small = ["cluster", "--nodes", "2", "--clients", "1", "--for", "20us", "--threads", "1"];
    let whole = sim(&[&small[..], &["--seeds", &SEEDS.to_string()]].concat());
    let whole = String::from_utf8(whole.stdout).unwrap();
    let trace =
        |text: &str| text.lines().next().unwrap().rsplit_once("trace ").unwrap().1.to_owned();
    assert_eq!(trace(&text), trace(&whole));
}

#[test]
fn sim_scalerpc_prints_both_ways_and_says_whether_turns_keep_the_rate() {
    let few = ["scalerpc", "--clients", "40,80"];
    let output = sim(&few);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!((text.matches("pool").count(), text.matches("scalerpc").count()), (3, 3), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // Turns cost something.
    let output = sim(&[&few[..], &["--spread", "0", "--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["pool"]["mops"].as_f64() > Some(0.0)));
    assert!(rows[1]["scalerpc"]["switches"].as_u64() > Some(0));
}

#[test]
fn sim_two_rank_passes_whatever_its_seed_and_draws_what_it_shows() {
    let folder = std::env::temp_dir().join(format!("copyrpc-sim-page-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    let path = folder.join("page.html");
    let output = sim(&["two-rank", "--seed", "11", "--page", path.to_str().unwrap()]);
    let page = std::fs::read_to_string(&path);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("seed 11 and two more") && !text.contains("MISSED"), "{text}");
    assert_whole_numbers(&text, 32);
    let page = page.unwrap();
    assert!(page.contains("<svg") && page.contains("simulated"), "{page}");
}

#[test]
fn sim_seeds_prints_every_measurement_with_its_class_and_command() {
    let output = sim(&["seeds"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("359 numbers: ") && text.contains(" not modelled"), "{text}");
    assert!(text.contains("delegation: copyrpc-lab sim bistability"), "{text}");
}

#[test]
fn sim_takes_other_constants_from_options_and_files_and_says_which_there_are() {
    let output = sim(&["two-rank", "--set", "send_queue=300"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("2 ranks: throughput"));
    let output = sim(&["two-rank", "--set", "sendqueue=300"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("one_way, jitter"));
    for (command, value, told) in [
        ("two-rank", "clients=0", "clients = 0"),
        ("dct", "units=2.5", "units = 2.5"),
        ("dct", "reads_max=-1", "reads_max = -1"),
        ("dct", "cache_ways=1351", "cache_contexts = 1350"),
        ("bistability", "warm_items=5000", "warm_items = 5000"),
    ] {
        let output = sim(&[command, "--set", value]);
        assert_eq!(output.status.code(), Some(2), "{command} {value}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(told) && error.contains("choose"), "{value}: {error}");
    }
    let path = std::env::temp_dir().join(format!("copyrpc-profile-{}", std::process::id()));
    std::fs::write(&path, "# slower\nsend_queue = 900 # ns\n\nturn = many\n").unwrap();
    let output = sim(&["two-rank", "--profile", path.to_str().unwrap()]);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(output.status.code(), Some(2));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("line 4") && error.contains("`many` is no number"), "{error}");
}

#[test]
fn sim_sensitivity_says_what_moves_with_each_constant() {
    let output = sim(&["sensitivity", "two-rank", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |name| rows.iter().find(|row| row["constant"] == name).unwrap();
    assert!(of("send_queue")["missed"][0].as_u64() > Some(2));
    // A rival explanation's constant is not in the model that explains.
    assert_eq!(of("pcie_read")["power"].as_f64(), Some(0.0));
}

#[test]
fn sim_mutants_and_ablation_say_what_each_brings() {
    let output = sim(&["two-rank", "--ablation"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("each message leaves at once") && text.contains("98 instead of 599 ns"),
        "{text}"
    );
    assert!(text.contains("READ of a consumer position: not modelled"), "{text}");
    assert!(text.contains("1 missed (worst 57.") && text.contains("predicts nothing"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let output = sim(&["mutants", "--help"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output = sim(&["steady", "--nodes", "2", "--set", "wires=1"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("wqe, message"));
}

#[test]
fn sim_raw_reproduces_its_numbers() {
    let output = sim(&["raw", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap().lines().count(), 13);
}

#[test]
fn sim_steady_compares_starts() {
    let small = ["--nodes", "2", "--depth", "1", "--clients", "2", "--spread", "50"];
    let short = ["--warm-up", "50us", "--for", "50us"];
    let output = sim(&[&["steady"], &small[..], &short].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("perturbed") && text.contains("seed 1"), "{text}");
    let set = ["steady", "--nodes", "2", "--depth", "1", "--spread", "50", "--set", "clients=2"];
    let output = sim(&[&set[..], &short].concat());
    assert_eq!(String::from_utf8(output.stdout).unwrap(), text, "the machine's clients");
}

#[test]
fn sim_steady_prints_the_table_over_nodes_as_the_document_shows_it() {
    let small = ["--nodes", "2,3", "--depth", "1,8", "--clients", "2", "--spread", "90"];
    let short = ["--warm-up", "50us", "--for", "50us"];
    let output = sim(&[&["steady", "--by-nodes"], &small[..], &short].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines().collect::<Vec<_>>();
    assert_eq!(lines[0], "| nodes | 1 call | 8 calls | messages per request | MiB per node |");
    assert_eq!(lines[1], "|---|---|---|---|---|");
    let fields = |line: &str| line.split(" | ").map(str::to_owned).collect::<Vec<_>>();
    let rows = [fields(lines[2]), fields(lines[3])];
    assert_eq!(rows.each_ref().map(|row| row[0].as_str()), ["| 2, rc", "| 3, rc"]);
    for row in rows {
        let rates = row[1..3].iter().flat_map(|range| range.split('–'));
        assert!(rates.map(str::parse::<f64>).all(|rate| rate.is_ok_and(|it| it > 0.0)), "{row:?}");
        assert_eq!(row[3].split(", ").count(), 2, "{row:?}");
    }
    let document =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/simulation.md");
    let document = std::fs::read_to_string(document).unwrap();
    let head = "| nodes | 1 call | 8 calls | 64 calls | messages per request | MiB per node |";
    assert!(document.lines().any(|line| line == head), "the document has this form");
    let spread = ["steady", "--by-nodes", "--nodes", "1024", "--depth", "64"];
    let output = sim(&[&spread[..], &short].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("| 1024, dc:8 | not run |"), "{text}");
}

#[test]
fn sim_curve_repeats_itself_and_draws_what_it_shows() {
    let path = std::env::temp_dir().join(format!("copyrpc-lab-curve-{}.svg", std::process::id()));
    let options = ["curve", "--clients", "2,16", "--svg", path.to_str().unwrap()];
    let [first, again] = [(); 2].map(|()| sim(&options));
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(first.stdout, again.stdout);
    let text = String::from_utf8_lossy(&first.stdout);
    assert!(text.contains("simulated: 2 nodes") && text.contains("599 ns"), "{text}");
    let picture = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert!(picture.contains("delegation, simulated"), "the picture says that it is simulated");
}
