//! Tells the program the commit that it is built from.

mod commit;

fn main() {
    // Whether the tree is clean depends on every source file.
    println!("cargo::rerun-if-changed=..");
    commit::tell();
}
