//! Sections of tables and charts, for a terminal, for a document, or as one HTML page.

pub mod chart;
mod page;

use std::io::{self, Write};

use self::chart::Chart;
use crate::{header::Header, table::Table};

/// A report on a result.
#[derive(Clone, Debug)]
pub struct Report {
    header: Header,
    /// The answer in sentences: it stands at the begin of a page and at the end of a text. May be empty.
    pub headline: Vec<String>,
    /// Further circumstances: names and values.
    pub facts: Vec<(String, String)>,
    /// The preface in front of the first section.
    pub preface: Vec<String>,
    /// In order.
    pub sections: Vec<ReportSection>,
    /// Notes that the numbers alone do not tell, one sentence each.
    pub notes: Vec<String>,
}

/// A group of charts and tables.
#[derive(Clone, Debug)]
pub struct ReportSection {
    /// Its heading.
    pub title: String,
    /// A hint for the reader; may be empty.
    pub hint: String,
    /// In order.
    pub blocks: Vec<Block>,
    /// A page shows it when it is asked to; a terminal never does.
    pub is_folded: bool,
}

/// A part of a section.
#[derive(Clone, Debug)]
pub enum Block {
    /// A heading below that of the section.
    Heading(String),
    /// Sentences.
    Text(String),
    /// Numbers.
    Table(Table),
    /// A picture: only pages show it.
    Chart(Chart),
    /// Pictures beside each other.
    Charts(Vec<Chart>),
}

impl ReportSection {
    /// A section without blocks.
    #[must_use]
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), hint: String::new(), blocks: Vec::new(), is_folded: false }
    }

    /// A section with a hint and blocks.
    #[must_use]
    pub fn with(title: &str, hint: &str, blocks: impl IntoIterator<Item = Block>) -> Self {
        let blocks = blocks.into_iter().collect();
        Self { title: title.to_owned(), hint: hint.to_owned(), blocks, is_folded: false }
    }

    /// The same, folded.
    #[must_use]
    pub fn folded(self) -> Self {
        Self { is_folded: true, ..self }
    }

    fn has_text(&self) -> bool {
        self.blocks.iter().any(|block| !matches!(block, Block::Chart(_) | Block::Charts(_)))
    }
}

impl Report {
    /// A report without sections.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let (headline, facts, preface, sections, notes) = Default::default();
        Self { header: header.clone(), headline, facts, preface, sections, notes }
    }

    /// Writes circumstances, tables and notes for people.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_text(&self, to: &mut dyn Write) -> io::Result<()> {
        let Header { bench, nic, cpu, cores, pinning, kernel, commit, profile, date, .. } =
            &self.header;
        writeln!(to, "{bench}: NIC {nic}, {cpu}, {cores} cores, pinned to {pinning}")?;
        writeln!(to, "kernel {kernel}, commit {commit}, {profile} build, {date}")?;
        for section in
            self.sections.iter().filter(|section| section.has_text() && !section.is_folded)
        {
            writeln!(to, "\n{}", section.title)?;
            for block in &section.blocks {
                match block {
                    Block::Heading(text) | Block::Text(text) => writeln!(to, "\n{text}")?,
                    Block::Table(table) => writeln!(to, "{}\n", table.text())?,
                    Block::Chart(_) | Block::Charts(_) => {}
                }
            }
        }
        self.all_notes().try_for_each(|note| writeln!(to, "{note}"))?;
        self.headline.iter().try_for_each(|sentence| writeln!(to, "\n{sentence}"))
    }

    /// Writes circumstances, tables and notes as Markdown.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_markdown(&self, to: &mut dyn Write) -> io::Result<()> {
        let Header {
            bench, command, nic, cpu, cores, pinning, kernel, commit, profile, date, ..
        } = &self.header;
        writeln!(to, "# bench {bench}\n\n`{command}`\n")?;
        writeln!(to, "{cpu}, {cores} cores, NIC {nic}, pinned to {pinning}, kernel {kernel},")?;
        writeln!(to, "commit {commit}, {profile} build, {date}.\n")?;
        let first = self.headline.iter().chain(&self.preface);
        first.into_iter().try_for_each(|text| writeln!(to, "{text}\n"))?;
        for section in self.sections.iter().filter(|section| section.has_text()) {
            writeln!(to, "## {}\n", section.title)?;
            if !section.hint.is_empty() {
                writeln!(to, "{}\n", section.hint)?;
            }
            for block in &section.blocks {
                match block {
                    Block::Heading(text) => writeln!(to, "### {text}\n")?,
                    Block::Text(text) => writeln!(to, "{text}\n")?,
                    Block::Table(table) => {
                        table.write_markdown(to)?;
                        writeln!(to)?;
                    }
                    Block::Chart(_) | Block::Charts(_) => {}
                }
            }
        }
        self.all_notes().try_for_each(|note| writeln!(to, "- {note}"))
    }

    /// One HTML page that needs nothing else, in light and dark.
    #[must_use]
    pub fn page(&self) -> String {
        page::render(self)
    }

    fn all_notes(&self) -> impl Iterator<Item = &str> {
        let is_debug = self.header.profile == "debug";
        let warning = is_debug.then_some("this is a debug build: its numbers mean nothing");
        self.notes.iter().map(String::as_str).chain(warning)
    }
}
