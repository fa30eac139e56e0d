//! SVG as text. Colours and fonts are classes of the page's style, so that both themes fit.

use std::fmt::{self, Write as _};

/// Text that is no markup.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Where a text is anchored.
#[derive(Clone, Copy, Debug)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

impl fmt::Display for Anchor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Middle => "middle",
            Self::End => "end",
        })
    }
}

/// A picture under construction.
#[derive(Debug)]
pub(super) struct Canvas {
    width: f64,
    height: f64,
    body: String,
}

// Writing to a string cannot fail.
impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { width, height, body: String::new() }
    }

    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub(super) fn text(&mut self, class: &str, anchor: Anchor, at: (f64, f64), text: &str) {
        let ((x, y), text) = (at, escape(text));
        let _ = writeln!(
            self.body,
            "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    /// A rectangle; `tip` shows when the pointer rests on it.
    pub(super) fn rect(&mut self, class: &str, at: (f64, f64), size: (f64, f64), tip: &str) {
        let ((x, y), (width, height), tip) = (at, size, escape(tip));
        let _ = writeln!(
            self.body,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\" rx=\"2.5\"><title>{tip}</title></rect>"
        );
    }

    /// A dot; `tip` shows when the pointer rests on it.
    pub(super) fn dot(&mut self, class: &str, at: (f64, f64), radius: f64, tip: &str) {
        let ((x, y), tip) = (at, escape(tip));
        let _ = writeln!(
            self.body,
            "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius:.1}\">\
             <title>{tip}</title></circle>"
        );
    }

    pub(super) fn curve(&mut self, class: &str, points: &[(f64, f64)], tip: &str) {
        let mut path = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if index == 0 { "M" } else { "L" });
        }
        let tip = escape(tip);
        let _ = writeln!(
            self.body,
            "<path class=\"curve {class}\" d=\"{path}\"><title>{tip}</title></path>"
        );
    }

    pub(super) fn finish(self, description: &str) -> String {
        let Self { width, height, body } = self;
        let description = escape(description);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" \
             aria-label=\"{description}\">\n{body}</svg>\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<a href=\"x\">&"), "&lt;a href=&quot;x&quot;&gt;&amp;");
        let mut canvas = Canvas::new(10.0, 10.0);
        canvas.text("", Anchor::Middle, (1.0, 2.0), "</text><script>");
        canvas.rect("", (0.0, 0.0), (1.0, 1.0), "</title>");
        let svg = canvas.finish("\"><script>");
        assert!(!svg.contains("<script") && svg.matches("</title>").count() == 1, "{svg}");
    }
}
