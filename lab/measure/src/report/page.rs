//! The page: a template, filled in.

use askama::Template;

use super::{Block, Report, ReportSection, chart};
use crate::header::Header;

/// Text from outside is escaped because of the template's name; pictures are not, they escape themselves.
#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    header: &'a Header,
    headline: &'a [String],
    facts: Vec<(&'a str, String)>,
    sections: &'a [ReportSection],
    notes: Vec<&'a str>,
    colours: Vec<chart::Colour>,
}

pub(super) fn render(report: &Report) -> String {
    let header = &report.header;
    let Header { version, commit, profile, cpu, cores, pinning, kernel, nic, .. } = header;
    let mut facts = vec![
        ("CPU", cpu.clone()),
        ("cores", cores.to_string()),
        ("pinning", pinning.clone()),
        ("NIC", nic.clone()),
        ("kernel", kernel.clone()),
        ("version", format!("{version}, commit {commit}, {profile} build")),
    ];
    facts.extend(report.facts.iter().map(|(name, value)| (&**name, value.clone())));
    let sections = &report.sections;
    let notes = report.all_notes().collect();
    let headline = &report.headline;
    let page = Page { header, headline, facts, sections, notes, colours: chart::colours() };
    // Only what a page shows could fail, and texts do not.
    page.render().expect("texts can be written to memory") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        number::{rate, short},
        report::{
            Block, ReportSection,
            chart::{Axis, Bar, Lines, Series, Stack, Strip},
        },
        table::Table,
    };

    /// Every kind of block.
    fn report() -> Report {
        let mut report = Report::new(&Header {
            bench: "test".into(),
            command: "copyrpc-lab bench test".into(),
            commit: "abc".into(),
            ..Header::default()
        });
        let bar = |label: &str, value| Bar {
            label: label.into(),
            colour: 1,
            value,
            range: (value * 0.9, value * 1.1),
        };
        let bars = [bar("a <b> & c", 93_000.0), bar("second", 0.0)];
        let strip = Strip { label: "s".into(), colour: 2, marks: vec![5e3, 2e4, 1e6] };
        let stack = Stack { label: "t".into(), parts: vec![10.0, 30.0] };
        let series = Series { name: "u".into(), colour: 3, points: vec![(1.0, 5.0), (8.0, 50.0)] };
        let lines = Lines {
            x: Axis::log([1.0, 8.0], short),
            y: Axis::linear([50.0], rate),
            series: vec![series],
            has_dots: true,
            is_wide: false,
        };
        let names = ["one".to_owned(), "two".to_owned()];
        let mut table = Table::new(1, ["name", "number"]);
        table.push(["x < y", "1"]);
        report.sections.push(ReportSection::with(
            "All",
            "how to read",
            [
                Block::Heading("some".into()),
                Block::Text("words".into()),
                Block::Table(table),
                Block::Chart(chart::bars(&bars, rate)),
                Block::Chart(chart::strips(&[strip], short)),
                Block::Chart(chart::stacks(&[stack], &names, true, short)),
                Block::Charts(vec![lines.chart().titled("facet".into())]),
            ],
        ));
        report.facts.push(("regimes".into(), "line 118 ns".into()));
        report.headline.push("ours is as fast as theirs".into());
        report
            .sections
            .push(ReportSection::with("More", "", [Block::Text("rest".into())]).folded());
        report.notes.push("a note".into());
        report
    }

    #[test]
    fn the_page_holds_all_and_escapes_what_comes_from_outside() {
        let page = report().page();
        for expected in [
            "copyrpc-lab bench test",
            "commit abc",
            "<h2>All</h2>",
            "how to read",
            "ours is as fast",
            "<summary><h2>More</h2></summary>",
            ">x &#60; y</td>",
            "a note",
            "line 118 ns",
            "prefers-color-scheme: dark",
            "facet",
            "93 k/s",
            "a &lt;b&gt; &amp; c",
        ] {
            assert!(page.contains(expected), "{expected:?} in\n{page}");
        }
        assert!(!page.contains("<b>"));
        assert_eq!(page.matches("<svg").count(), 4);
    }

    #[test]
    fn the_page_needs_nothing_from_the_network() {
        let page = report().page();
        for forbidden in ["http://", "https://", "<script", "@import", "url(", "src="] {
            let found = page.match_indices(forbidden).map(|(at, _)| &page[at..]).next();
            assert!(found.is_none(), "{:?}", found.map(|text| &text[..text.len().min(60)]));
        }
    }

    #[test]
    fn a_picture_is_a_file_of_its_own_with_its_legend() {
        let series =
            Series { name: "a < b".into(), colour: 3, points: vec![(1.0, 5.0), (8.0, 50.0)] };
        let lines = Lines {
            x: Axis::doubling([1.0, 8.0]),
            y: Axis::linear([50.0], short),
            series: vec![series],
            has_dots: true,
            is_wide: true,
        };
        let file = lines.chart().coloured([("a < b".to_owned(), 3)]).file();
        assert!(
            file.starts_with(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"350\""
            )
        );
        assert!(file.contains(">a &lt; b</text>") && file.ends_with("</g>\n</svg>\n"), "{file}");
        assert_eq!(file.matches("<svg").count(), file.matches("</svg>").count());
    }

    /// The value of the first attribute `name` of each element in `text`, as a number.
    fn attributes(text: &str, name: &str) -> Vec<f64> {
        let begin = format!(" {name}=\"");
        let parts = text.split(&*begin).skip(1);
        parts.filter_map(|part| part.split('"').next()?.parse().ok()).collect()
    }

    /// A chart that is narrower than this has its own scroll bar, so its text keeps its size on any screen.
    #[test]
    fn text_of_charts_can_be_read_on_a_screen_of_400_px() {
        let page = report().page();
        assert!(page.contains(".chart { overflow-x: auto; }"));
        let mut charts = 0;
        for chart in page.split("<div class=\"chart").skip(1) {
            let least_px = if chart.starts_with(" small") { 320.0 } else { 760.0 };
            let rule = format!("min-width: {least_px}px");
            assert!(page.contains(&rule), "{rule}");
            let svg = chart.split("</svg>").next().expect("a chart has a drawing");
            let view = svg.split(" viewBox=\"0 0 ").nth(1).expect("a drawing has a size");
            let width: f64 = view.split(' ').next().unwrap().parse().unwrap();
            for size in attributes(svg, "font-size") {
                let shown_px = size * least_px / width;
                assert!(shown_px >= 8.0, "{size} of {width} is {shown_px} px");
                charts += 1;
            }
        }
        assert!(charts > 0, "no chart has text");
    }

    #[test]
    fn every_element_is_closed_and_no_number_is_odd() {
        let page = report().page();
        for element in
            ["svg", "text", "section", "table", "tr", "td", "th", "main", "dl", "div", "span"]
        {
            let open = page.matches(&format!("<{element} ")).count()
                + page.matches(&format!("<{element}>")).count();
            assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "coordinates are finite");
    }

    /// Every colour of a picture has a meaning that the style can change in the dark.
    #[test]
    fn pictures_use_only_colours_that_the_style_knows() {
        let page = report().page();
        let known = chart::colours().into_iter().map(|colour| colour.hex).collect::<Vec<_>>();
        let svg = &page[page.find("<svg").unwrap()..];
        for part in ["fill=\"#", "stroke=\"#"] {
            for (at, _) in svg.match_indices(part) {
                let hex = &svg[at + part.len() - 1..][..7];
                assert!(known.iter().any(|known| known == hex), "{hex}");
            }
        }
    }
}
