//! Every command of docs/instruments.md, in its smallest form, shows what its row says.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

struct Row {
    command: Vec<String>,
    shows: String,
}

/// Lines of tables with a command in their second field and a text in their third.
fn rows() -> Vec<Row> {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/instruments.md");
    let document = fs::read_to_string(document).unwrap();
    let row = |line: &str| {
        let fields = line.strip_prefix("| ")?.split(" | ").collect::<Vec<_>>();
        let command = fields.get(1)?.strip_prefix("`copyrpc-lab ")?.strip_suffix('`')?;
        let shows = fields.get(2)?.trim_end_matches(" |").trim_matches('`').to_owned();
        Some(Row { command: command.split_whitespace().map(str::to_owned).collect(), shows })
    };
    document.lines().filter_map(row).collect()
}

/// What makes a command short, in a folder of its own: of a grid of cells the one that its row shows.
fn smallest(row: &Row) -> Vec<&str> {
    match (row.command[0].as_str(), row.command[1].as_str()) {
        ("bench", "kv") => {
            // Long enough for an answer on a machine that many others use.
            let short = ["--quick", "--warm-up", "10ms", "--duration", "500ms", "--keys", "2k"];
            [&short[..], &["--out", "result"]].concat()
        }
        ("bench", _) => {
            let is_grid = row.shows.contains('/') && !row.command.iter().any(|arg| arg == "--cell");
            let cell = if is_grid { vec!["--cell", &row.shows] } else { Vec::new() };
            [&["--quick", "--runs", "1"], &cell[..]].concat()
        }
        _ => Vec::new(),
    }
}

/// What a command printed and wrote.
fn output_of(row: &Row, folder: &Path) -> String {
    fs::create_dir(folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.current_dir(folder).args(&row.command).args(smallest(row));
    let output = command.output().unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {text}{error}", row.command);
    let kills = row.command.iter().any(|argument| argument.starts_with("kill"));
    assert!(kills || !error.contains(" WARN "), "{:?} ends in order: {error}", row.command);
    if row.command[0] == "sim" {
        let is_wide = |line: &&str| line.chars().count() > 80;
        assert_eq!(text.lines().find(is_wide), None, "{:?} fits 80 columns", row.command);
    }
    let written = fs::read_dir(folder.join("result")).into_iter().flatten();
    for file in written {
        text.push_str(&String::from_utf8_lossy(&fs::read(file.unwrap().path()).unwrap()));
    }
    fs::remove_dir_all(folder).unwrap();
    text
}

fn has_two_cores() -> bool {
    os::affinity::allowed_cores().is_ok_and(|cores| cores.len() > 1)
}

fn folder(number: usize) -> PathBuf {
    std::env::temp_dir().join(format!("copyrpc-instruments-{}-{number}", std::process::id()))
}

#[test]
#[ignore = "slow: a minute of measuring and computing"]
fn every_command_of_the_document_shows_what_its_row_says_slow() {
    let rows = rows();
    assert!(rows.len() > 25, "the document has its tables: {}", rows.len());
    let mut outputs = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        if row.command[0] == "bench" && row.command[1] != "kv" && !has_two_cores() {
            continue;
        }
        let arguments = [row.command.join(" "), smallest(row).join(" ")];
        let text = outputs.entry(arguments).or_insert_with(|| output_of(row, &folder(number)));
        // Where nothing is counted, a sentence says why.
        let is_shown = text.contains(&row.shows)
            || row.shows.starts_with("Counted") && text.contains("not available here");
        assert!(is_shown, "{:?} does not show {}: {text}", row.command, row.shows);
    }
}
