//! A Rust file as a flat list of tokens: comments and the insides of strings are out of the way,
//! and macro bodies are in sight.

use std::{
    path::{Path, PathBuf},
    str::FromStr,
};

use proc_macro2::{Delimiter, Span, TokenStream, TokenTree};

/// An identifier, a literal, one character of punctuation, or one side of a bracket.
pub(crate) struct Token {
    pub(crate) text: String,
    /// From 1.
    pub(crate) line: usize,
    /// Byte offset of the token in the file.
    pub(crate) start: usize,
}

/// One parsed file.
pub(crate) struct RustFile {
    /// Relative to the root.
    pub(crate) path: PathBuf,
    pub(crate) text: String,
    pub(crate) tokens: Vec<Token>,
}

impl RustFile {
    /// Returns `None` if `text` is not a sequence of Rust tokens.
    pub(crate) fn parse(path: PathBuf, text: String) -> Option<Self> {
        let stream = TokenStream::from_str(&text).ok()?;
        let mut tokens = Vec::new();
        flatten(stream, &mut tokens);
        Some(Self { path, text, tokens })
    }

    /// Whether the file is part of a crate's library or binary, under `crates` or `lab`.
    pub(crate) fn is_crate_source(&self) -> bool {
        let mut parts = self.path.iter();
        parts.next().is_some_and(|part| part == "crates" || part == "lab")
            && parts.nth(1) == Some("src".as_ref())
    }

    /// Whether the file belongs to crate `dir`.
    pub(crate) fn is_in(&self, dir: &str) -> bool {
        self.path.starts_with(Path::new(dir))
    }

    /// Indices at which the space-separated tokens of `pattern` follow each other.
    pub(crate) fn find<'a>(&'a self, pattern: &'a str) -> impl Iterator<Item = usize> + 'a {
        (0..self.tokens.len()).filter(move |&start| self.matches(start, pattern))
    }

    /// Whether the space-separated tokens of `pattern` begin at index `start`.
    pub(crate) fn matches(&self, start: usize, pattern: &str) -> bool {
        let mut tokens = self.tokens[start..].iter();
        pattern.split(' ').all(|text| tokens.next().is_some_and(|token| token.text == text))
    }

    /// Text of the token at `index`, or "" past either end.
    pub(crate) fn at(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| &token.text)
    }

    /// Index of the bracket that closes the one at `open`; the parser has proved that it exists.
    pub(crate) fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            match token.text.as_str() {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return index;
            }
        }
        self.tokens.len() - 1
    }
}

fn flatten(stream: TokenStream, tokens: &mut Vec<Token>) {
    for tree in stream {
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""), // only procedural macros make these
                };
                tokens.push(token(open.into(), group.span_open()));
                flatten(group.stream(), tokens);
                tokens.push(token(close.into(), group.span_close()));
            }
            TokenTree::Ident(ident) => tokens.push(token(ident.to_string(), ident.span())),
            TokenTree::Punct(punct) => tokens.push(token(punct.as_char().into(), punct.span())),
            TokenTree::Literal(literal) => tokens.push(token(literal.to_string(), literal.span())),
        }
    }
}

fn token(text: String, span: Span) -> Token {
    Token { text, line: span.start().line, start: span.byte_range().start }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "// asm!\nfn é() { \"asm!\"; /* asm! */\n  x!(asm!(1)); }\n";

    fn file() -> RustFile {
        RustFile::parse("crates/a/src/b.rs".into(), TEXT.into()).unwrap()
    }

    #[test]
    fn comments_and_strings_hide_nothing_but_themselves() {
        let file = file();
        let hits: Vec<_> = file.find("asm !").map(|index| file.tokens[index].line).collect();
        assert_eq!(hits, [3]);
    }

    #[test]
    fn offsets_are_in_bytes() {
        let file = file();
        let asm = &file.tokens[file.find("asm !").next().unwrap()];
        assert!(file.text[asm.start..].starts_with("asm!(1)"));
    }

    #[test]
    fn a_bracket_finds_its_partner() {
        let file = file();
        let body = file.find("{").next().unwrap();
        assert_eq!(file.closing(body), file.tokens.len() - 1);
    }

    #[test]
    fn only_src_of_crates_is_crate_source() {
        assert!(file().is_crate_source() && file().is_in("crates/a"));
        for path in ["xtask/src/b.rs", "crates/a/tests/b.rs", "lab/a/tests/b.rs"] {
            assert!(!RustFile::parse(path.into(), String::new()).unwrap().is_crate_source());
        }
    }
}
