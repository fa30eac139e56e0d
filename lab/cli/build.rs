//! Tells the program the commit that it is built from.

#[path = "../../crates/cli/commit.rs"]
mod commit;

fn main() {
    // Whether the tree is clean depends on every source file.
    for folder in ["..", "../../crates"] {
        println!("cargo::rerun-if-changed={folder}");
    }
    commit::tell();
}
