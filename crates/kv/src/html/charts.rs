//! Kinds of pictures.

use super::{
    axis::Scale,
    svg::{Anchor, Canvas},
};

const WIDTH: f64 = 1000.0;
const ROW: f64 = 28.0;
const BAR: f64 = 16.0;
/// Room for labels left of rows.
const LABEL_WIDTH_MAX: f64 = 330.0;
/// Average width of a character.
const CHARACTER: f64 = 6.9;
const COLOURS: usize = 8;

/// Class that gives series number `index` its colour.
pub(super) fn colour(index: usize) -> String {
    format!("s{}", index % COLOURS)
}

/// How the parts of a whole are coloured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Palette {
    /// Parts of different kinds.
    Kinds,
    /// Parts in an order: from light to dark.
    Ramp,
}

impl Palette {
    /// Class that gives part number `index` its colour.
    pub(super) fn class(self, index: usize) -> String {
        match self {
            Self::Kinds => colour(index),
            Self::Ramp => format!("r{}", index.min(COLOURS - 1)),
        }
    }
}

/// One horizontal bar, from 0, with whiskers.
pub(super) struct Bar {
    pub(super) label: String,
    pub(super) colour: usize,
    pub(super) value: f64,
    /// Smallest and largest.
    pub(super) range: (f64, f64),
}

/// Horizontal bars below each other.
pub(super) fn bars(bars: &[Bar], show: &dyn Fn(f64) -> String, description: &str) -> String {
    let scale = Scale::linear(bars.iter().map(|bar| bar.range.1));
    let mut rows = Rows::new(bars.iter().map(|bar| bar.label.as_str()), scale, 70.0);
    rows.axis(show);
    for (index, bar) in bars.iter().enumerate() {
        let (y, middle) = (rows.bar_top(index), rows.middle(index));
        let (low, high) = bar.range;
        let tip = format!("{}: {} ({} to {})", bar.label, show(bar.value), show(low), show(high));
        let width = rows.x(bar.value) - rows.left;
        let class = format!("fill {}", colour(bar.colour));
        rows.canvas.rect(&class, (rows.left, y), (width.max(1.0), BAR), &tip);
        let (low_x, high_x) = (rows.x(low), rows.x(high));
        if high_x - low_x > 1.0 {
            rows.canvas.line("whisker", (low_x, middle), (high_x, middle));
            for x in [low_x, high_x] {
                rows.canvas.line("whisker", (x, middle - 4.0), (x, middle + 4.0));
            }
        }
        let at = (high_x.max(rows.x(bar.value)) + 8.0, middle + 4.0);
        rows.canvas.text("small strong", Anchor::Start, at, &show(bar.value));
    }
    rows.canvas.finish(description)
}

/// Percentiles of one cell.
pub(super) struct Strip {
    pub(super) label: String,
    pub(super) colour: usize,
    /// Names and values, ascending.
    pub(super) marks: Vec<(&'static str, f64)>,
}

/// Percentiles below each other, on one logarithmic axis.
pub(super) fn strips(strips: &[Strip], show: &dyn Fn(f64) -> String, description: &str) -> String {
    let values = strips.iter().flat_map(|strip| strip.marks.iter().map(|mark| mark.1));
    let labels = strips.iter().map(|strip| strip.label.as_str());
    let mut rows = Rows::new(labels, Scale::log(values), 30.0);
    rows.axis(show);
    for (index, strip) in strips.iter().enumerate() {
        let middle = rows.middle(index);
        let class = colour(strip.colour);
        let ends = strip.marks.first().zip(strip.marks.last());
        if let Some((first, last)) = ends {
            let from = (rows.x(first.1), middle);
            rows.canvas.line(&format!("stroke {class} band"), from, (rows.x(last.1), middle));
        }
        let count = strip.marks.len();
        for (place, (name, value)) in strip.marks.iter().enumerate() {
            let tip = format!("{}: {name} {}", strip.label, show(*value));
            let radius = 6.0 - 3.4 * place as f64 / count.max(2) as f64;
            rows.canvas.dot(&format!("fill {class}"), (rows.x(*value), middle), radius, &tip);
        }
    }
    rows.canvas.finish(description)
}

/// One row of parts that add up.
pub(super) struct Stack {
    pub(super) label: String,
    /// Values in the order of the legend.
    pub(super) parts: Vec<f64>,
}

/// Parts of a whole below each other; `names` is the legend.
pub(super) fn stacks(
    stacks: &[Stack],
    names: &[String],
    palette: Palette,
    show: &dyn Fn(f64) -> String,
    description: &str,
) -> String {
    let sums = stacks.iter().map(|stack| stack.parts.iter().sum::<f64>());
    let labels = stacks.iter().map(|stack| stack.label.as_str());
    let mut rows = Rows::new(labels, Scale::linear(sums), 30.0);
    rows.axis(show);
    for (index, stack) in stacks.iter().enumerate() {
        let mut from = 0.0;
        for (part, (value, name)) in stack.parts.iter().zip(names).enumerate() {
            let (x, end) = (rows.x(from), rows.x(from + value));
            let tip = format!("{}: {name} {}", stack.label, show(*value));
            let class = format!("fill {}", palette.class(part));
            let top = rows.bar_top(index);
            rows.canvas.rect(&class, (x, top), ((end - x - 1.0).max(0.3), BAR), &tip);
            from += value;
        }
    }
    rows.canvas.finish(description)
}

/// Rows with labels left of a common horizontal axis.
struct Rows {
    canvas: Canvas,
    scale: Scale,
    left: f64,
    right: f64,
    bottom: f64,
    labels: Vec<String>,
}

impl Rows {
    fn new<'a>(labels: impl Iterator<Item = &'a str>, scale: Scale, right_margin: f64) -> Self {
        let labels = labels.map(str::to_owned).collect::<Vec<_>>();
        let longest = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
        let bottom = labels.len() as f64 * ROW;
        let left = (longest as f64 * CHARACTER).min(LABEL_WIDTH_MAX) + 14.0;
        let canvas = Canvas::new(WIDTH, bottom + 26.0);
        Self { canvas, scale, left, right: WIDTH - right_margin, bottom, labels }
    }

    fn x(&self, value: f64) -> f64 {
        self.left + (self.right - self.left) * self.scale.place(value)
    }

    fn middle(&self, index: usize) -> f64 {
        (index as f64 + 0.5) * ROW
    }

    fn bar_top(&self, index: usize) -> f64 {
        self.middle(index) - BAR / 2.0
    }

    fn axis(&mut self, show: &dyn Fn(f64) -> String) {
        for tick in self.scale.ticks() {
            let x = self.x(tick);
            self.canvas.line("grid", (x, 0.0), (x, self.bottom + 4.0));
            let at = (x, self.bottom + 19.0);
            self.canvas.text("soft small", Anchor::Middle, at, &show(tick));
        }
        for (index, label) in self.labels.iter().enumerate() {
            let y = (index as f64 + 0.5) * ROW + 4.0;
            self.canvas.text("", Anchor::End, (self.left - 12.0, y), label);
        }
    }
}

/// One curve.
pub(super) struct Series {
    pub(super) name: String,
    pub(super) colour: usize,
    pub(super) points: Vec<(f64, f64)>,
    /// Whether each point is marked.
    pub(super) has_dots: bool,
}

/// Curves over two axes.
pub(super) struct Lines<'a> {
    pub(super) series: &'a [Series],
    pub(super) x: Scale,
    pub(super) y: Scale,
    pub(super) show_x: &'a dyn Fn(f64) -> String,
    pub(super) show_y: &'a dyn Fn(f64) -> String,
    /// Values that the x axis names, if not its own ticks.
    pub(super) x_ticks: Option<Vec<f64>>,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl Lines<'_> {
    /// Full width of a section.
    pub(super) const WIDE: (f64, f64) = (WIDTH, 330.0);
    /// Several beside each other.
    pub(super) const FACET: (f64, f64) = (440.0, 260.0);

    pub(super) fn draw(&self, description: &str) -> String {
        const LEFT: f64 = 58.0;
        const BOTTOM: f64 = 28.0;
        const TOP: f64 = 8.0;
        const RIGHT: f64 = 18.0;
        let (width, height) = (self.width - LEFT - RIGHT, self.height - BOTTOM - TOP);
        let x = |value: f64| LEFT + width * self.x.place(value);
        let y = |value: f64| TOP + height * (1.0 - self.y.place(value));
        let mut canvas = Canvas::new(self.width, self.height);
        for tick in self.y.ticks() {
            canvas.line("grid", (LEFT, y(tick)), (LEFT + width, y(tick)));
            let at = (LEFT - 8.0, y(tick) + 4.0);
            canvas.text("soft small", Anchor::End, at, &(self.show_y)(tick));
        }
        for tick in self.x_ticks.clone().unwrap_or_else(|| self.x.ticks()) {
            canvas.line("grid", (x(tick), TOP), (x(tick), TOP + height));
            let at = (x(tick), self.height - 8.0);
            canvas.text("soft small", Anchor::Middle, at, &(self.show_x)(tick));
        }
        canvas.line("axis", (LEFT, TOP + height), (LEFT + width, TOP + height));
        for Series { name, colour: index, points, has_dots } in self.series {
            let class = format!("stroke {}", colour(*index));
            let places = points.iter().map(|&(px, py)| (x(px), y(py))).collect::<Vec<_>>();
            canvas.curve(&class, &places, name);
            if *has_dots {
                for (&(px, py), &place) in points.iter().zip(&places) {
                    let tip = format!("{name}: {} at {}", (self.show_y)(py), (self.show_x)(px));
                    canvas.dot(&format!("fill {}", colour(*index)), place, 3.6, &tip);
                }
            }
        }
        canvas.finish(description)
    }
}
